# Releases and what is deployed; included by the Makefile.

.PHONY: release
release: ## Archives, .deb and .rpm for linux amd64 and arm64, checksums, SBOM: dist/, from the last commit
	VERSION=$(VERSION) scripts/release.sh $(BUILDS)

.PHONY: check-release
check-release: ## Try what `make release` built: unpack, install into a folder, run, build again and compare
	scripts/check-release.sh --again
