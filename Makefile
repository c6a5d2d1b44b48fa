# Everything a developer or CI runs. `make help` lists the targets.
SHELL      := bash
GO         ?= go
BIN        := bin/weir
PYTHON     ?= python3
VENV       := .cache/venv
TESTFLAGS  ?=
VERSION    ?= dev
TAGS       ?=
LDFLAGS    := -s -w -X github.com/weirlake/weir/internal/cli.Version=$(VERSION)

# Packages whose tests start real processes: a broker, readers, kills.
REAL := ./internal/source/kafka/... ./internal/broker/... ./internal/ingest/... ./internal/audit/... \
	./internal/objstore/s3/... ./internal/lake ./internal/sink/iceberg/... ./tests/...

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

.PHONY: build
build: ## Build bin/weir
	@mkdir -p bin
	@case "$(TAGS)" in *noduckdb*) ;; *) case "$$($${CC:-cc} -print-file-name=libstdc++.so)" in /*) ;; *) \
		echo "DuckDB needs the C++ library: install g++, or build without gold and SQL: make build TAGS=noduckdb" >&2; exit 1;; esac;; esac
	$(GO) build -tags '$(TAGS)' -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/weir

.PHONY: tools
tools: ## Fetch what the tests use from the package registries: Kafka, Python readers
	@scripts/kafka.sh fetch
	@scripts/venv.sh

.PHONY: tools-s3
tools-s3: ## Build the S3 server that the tests of S3 use (they skip without it)
	@scripts/s3.sh fetch

.PHONY: test
test: vet build tools ## Every test: units first, then real Kafka, independent readers, kills
	$(GO) test -short -timeout 10m $(TESTFLAGS) ./...
	WEIR_BIN=$(CURDIR)/$(BIN) WEIR_PYTHON=$(CURDIR)/$(VENV)/bin/python $(GO) test -p 1 -timeout 60m $(TESTFLAGS) $(REAL)
	$(GO) test -timeout 30m $(TESTFLAGS) ./internal/mutants

.PHONY: unit
unit: ## The fast tests only: no broker, no Python
	$(GO) test -short -timeout 10m $(TESTFLAGS) ./...

.PHONY: sessions
sessions: build tools ## Sessions and windows against DuckDB, the query of sessions killed at each of its steps
	WEIR_SESSIONS=1 WEIR_BIN=$(CURDIR)/$(BIN) WEIR_PYTHON=$(CURDIR)/$(VENV)/bin/python $(GO) test -count=3 -timeout 60m $(TESTFLAGS) ./tests -run 'SessionsAndWindows'

.PHONY: test-full
test-full: tools-s3 test sessions dbt tutorial catalogs clouds cloud-run stores registry secure delta-spark dashboards deploy-check orchestrators vulncheck prove ## All of test, the dashboards, then the whole proof, resumable
	@echo done

# Packages that are tried on real catalogs: Postgres, Iceberg's REST server, and on
# an emulation of AWS Glue. Each suite lists there what an implementation passed.
CATALOGS    := ./internal/lake ./internal/sink/iceberg ./internal/catalogserve ./internal/audit
CONFORMANCE := $(CURDIR)/.cache/conformance.txt

.PHONY: catalogs
catalogs: build tools ## Catalogs on a real Postgres, Iceberg's REST server and an emulated Glue, killed; PyIceberg and DuckDB attach
	@scripts/iceberg-rest.sh fetch
	@scripts/venv.sh duckdb
	@scripts/venv.sh moto
	@rm -f $(CONFORMANCE)
	WEIR_CONFORMANCE=$(CONFORMANCE) WEIR_PYTHON=$(CURDIR)/$(VENV)/bin/python $(GO) test -count=1 -p 1 -timeout 60m $(TESTFLAGS) $(CATALOGS)
	WEIR_CATALOGS=1 WEIR_BIN=$(CURDIR)/$(BIN) WEIR_PYTHON=$(CURDIR)/$(VENV)/bin/python $(GO) test -count=1 -timeout 60m $(TESTFLAGS) ./tests -run 'Glue|Postgres|REST|Catalog'
	@cat $(CONFORMANCE)

# Sinks over stores outside, on the real ones: Postgres, Apache Kafka, Cassandra.
STORES := ./internal/sink/postgres ./internal/sink/kafka ./internal/sink/cassandra

.PHONY: stores
stores: build tools ## Sinks outside on real servers, killed in the middle of their commits (Postgres, Kafka, Cassandra)
	@scripts/cassandra.sh fetch
	$(GO) test -count=1 -p 1 -timeout 30m $(TESTFLAGS) $(STORES)
	WEIR_STORES=1 WEIR_BIN=$(CURDIR)/$(BIN) WEIR_PYTHON=$(CURDIR)/$(VENV)/bin/python $(GO) test -count=1 -timeout 30m $(TESTFLAGS) ./tests -run Store

.PHONY: clouds
clouds: build ## Google Cloud Storage and Azure on emulations: the stores' suite with faults, a pipeline killed five times on each
	@scripts/gcs.sh fetch
	@scripts/azurite.sh fetch
	@rm -f $(CONFORMANCE)
	WEIR_CONFORMANCE=$(CONFORMANCE) $(GO) test -count=1 -timeout 30m $(TESTFLAGS) ./internal/objstore/...
	WEIR_BIN=$(CURDIR)/$(BIN) $(GO) test -count=1 -timeout 30m $(TESTFLAGS) ./tests -run 'Emulated'
	@cat $(CONFORMANCE)

.PHONY: cloud-run
cloud-run: build tools tools-s3 ## examples/cloud.yaml on Kafka with TLS and log-in, Postgres and an S3 server, killed five times, counted by others; weir demo on S3 and Postgres
	@scripts/venv.sh duckdb
	@scripts/venv.sh attach
	WEIR_CLOUD_RUN=1 WEIR_BIN=$(CURDIR)/$(BIN) WEIR_PYTHON=$(CURDIR)/$(VENV)/bin/python \
		$(GO) test -count=1 -timeout 30m $(TESTFLAGS) ./tests -run 'TheExampleOnKafka|ADemoOnS3'

.PHONY: attach
attach: catalogs ## The same, with Spark attaching as well (fetches 0.5 GB); a table of engines and catalogs
	@scripts/spark.sh >/dev/null
	@scripts/venv.sh attach >/dev/null
	WEIR_ATTACH=$(CURDIR)/.cache/attach.txt $(GO) test -count=1 -timeout 30m $(TESTFLAGS) ./internal/catalogserve -run 'Attaches|EveryEngine'
	@cat .cache/attach.txt

.PHONY: delta-spark
delta-spark: build tools ## Spark and delta-rs read the same rows of every Delta table, killed at every step (fetches 0.5 GB)
	WEIR_SPARK_DELTA="$$(scripts/spark.sh delta)" WEIR_BIN=$(CURDIR)/$(BIN) WEIR_PYTHON=$(CURDIR)/$(VENV)/bin/python \
		$(GO) test -count=1 -timeout 30m $(TESTFLAGS) ./tests -run DeltaRSAndSpark

.PHONY: secure
secure: build tools ## A real Kafka with every log-in, with and without TLS; secrets in no output
	WEIR_TEST_SECURE=1 WEIR_SLOW=1 WEIR_BIN=$(CURDIR)/$(BIN) WEIR_PYTHON=$(CURDIR)/$(VENV)/bin/python \
		$(GO) test -p 1 -timeout 30m $(TESTFLAGS) ./internal/broker ./tests -run 'RealKafkaIs|Secret|Secured|WrongSettings|StaysAwayEnds'

.PHONY: registry
registry: build tools ## Values of a schema registry: written by Confluent's serializers, read through a real registry
	@scripts/schema-registry.sh fetch
	@scripts/venv.sh registry
	WEIR_REGISTRY=1 WEIR_BIN=$(CURDIR)/$(BIN) WEIR_PYTHON=$(CURDIR)/$(VENV)/bin/python $(GO) test -count=1 -timeout 20m $(TESTFLAGS) ./tests -run SchemaRegistry

.PHONY: tutorial
tutorial: build ## Every command of docs/tutorial.md, in its order
	WEIR_TUTORIAL=1 WEIR_BIN=$(CURDIR)/$(BIN) $(GO) test -count=1 -timeout 20m $(TESTFLAGS) ./tests -run TheTutorial

.PHONY: dbt
dbt: build ## The shipped models under real dbt-duckdb give the tables that weir gold gives
	@scripts/venv.sh dbt
	WEIR_BIN=$(CURDIR)/$(BIN) WEIR_PYTHON=$(CURDIR)/$(VENV)/bin/python $(GO) test -count=1 -timeout 20m $(TESTFLAGS) ./tests -run RealDbt

.PHONY: dashboards
dashboards: build ## A real Prometheus evaluates dashboard and alerts over a run (skipped without one)
	scripts/check-dashboards.sh

.PHONY: mutants
mutants: ## Break one rule of the protocol after the other; each must be noticed by a named test
	$(GO) test -count=1 -timeout 30m -v $(TESTFLAGS) ./internal/mutants | grep -E '^ *(---|ok|FAIL)|noticed|up to date|panic'; exit $${PIPESTATUS[0]}

# Random schedules of make simulate, a half on each of two processes, and those
# with the shipped Kafka source.
SCHEDULES ?= 10000
KAFKA_SCHEDULES ?= 2000

.PHONY: simulate
simulate: ## Two writers at every pair of steps, then SCHEDULES=10000 random schedules and KAFKA_SCHEDULES=2000 with the Kafka source
	@mkdir -p .cache
	$(GO) test -c -o .cache/sim.test ./internal/sim
	.cache/sim.test -test.v -test.timeout 60m -test.run 'TestTwoWriters|TestASeed'
	for kind in OfFaults:$(SCHEDULES) WithTheShippedKafkaSource:$(KAFKA_SCHEDULES); do \
	  half=$$(($${kind#*:} / 2)); run="-test.v -test.timeout 120m -test.run TestARandomSchedule$${kind%:*} -sim.schedules $$half"; \
	  .cache/sim.test $$run & first=$$!; \
	  .cache/sim.test $$run -sim.first $$((half + 1)) && wait $$first || exit 1; \
	done

.PHONY: race
race: ## The fast tests under the race detector
	$(GO) test -short -race -timeout 20m $(TESTFLAGS) ./...

.PHONY: prove
prove: build tools ## Kill it at every step and count (resumable)
	$(BIN) prove all --resume

.PHONY: prove-real
prove-real: build tools tools-s3 ## The whole matrix on real parts: one shared Apache Kafka, S3, Postgres, a REST catalog, Cassandra (resumable)
	-scripts/postgres.sh install
	-scripts/iceberg-rest.sh fetch
	-scripts/cassandra.sh fetch
	-scripts/spark.sh
	$(BIN) prove all --resume --kafka-script scripts/kafka.sh --report proof.html

.PHONY: prove-upgrade
prove-upgrade: tools ## The fast groups against the newest versions of libraries and broker, in a copy
	scripts/prove-upgrade.sh

.PHONY: hurt
hurt: build ## Weir and Spark killed and robbed of their progress; weir audit counts both (fetches 1 GB)
	scripts/peers/hurt.sh

.PHONY: bench
bench: build ## First figures of every stage
	$(BIN) bench all

.PHONY: vet
vet:
	$(GO) vet ./...
	@test -z "$$(gofmt -l *.go cmd internal tests)" || { echo 'gofmt wants to change:'; gofmt -l *.go cmd internal tests; exit 1; }

.PHONY: lint
lint: vet ## go vet, gofmt and golangci-lint (installed into .cache at a pinned version)
	@test -x .cache/bin/golangci-lint || GOBIN=$(CURDIR)/.cache/bin $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
	.cache/bin/golangci-lint run ./...

include scripts/release.mk

.PHONY: clean
clean: ## Remove what was built; caches stay
	rm -rf bin
