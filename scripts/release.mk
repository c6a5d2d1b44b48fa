# Releases and what is deployed; included by the Makefile.

.PHONY: release
release: ## Archives, .deb and .rpm for linux amd64 and arm64, checksums, SBOM: dist/, from the last commit
	VERSION=$(VERSION) scripts/release.sh $(BUILDS)

.PHONY: check-release
check-release: ## Try what `make release` built: unpack, install into a folder, run, build again and compare
	scripts/check-release.sh --again

.PHONY: deploy-check
deploy-check: build tools tools-s3 ## Lint image, compose file and chart; run what they run, outside of containers
	$$(dirname $$(scripts/venv.sh hadolint))/hadolint deploy/docker/Dockerfile
	WEIR_BIN=$(CURDIR)/$(BIN) $(GO) test -count=1 -timeout 15m $(TESTFLAGS) ./tests -run 'ComposeFile|TheImage'
	WEIR_BIN=$(CURDIR)/$(BIN) scripts/check-chart.sh

.PHONY: vulncheck
vulncheck: ## Known vulnerabilities in what is linked (skipped, with the reason, where the database cannot be reached)
	scripts/vulncheck.sh

.PHONY: orchestrators
orchestrators: build ## Airflow and Dagster run the examples for real (installs both)
	WEIR_BIN=$(CURDIR)/$(BIN) WEIR_DAGSTER_PYTHON=$$(scripts/venv.sh dagster) WEIR_AIRFLOW_PYTHON=$$(scripts/venv.sh airflow) \
		$(GO) test -count=1 -timeout 30m $(TESTFLAGS) ./tests -run 'Dagster|Airflow|Cron|TheTableOfExit'

.PHONY: bench-peers
bench-peers: build ## Weir beside Spark, Flink, Kafka Connect and hand-written Python on one real Kafka (resumable; 2 GB of downloads)
	scripts/peers/run.sh $(PEERS)
