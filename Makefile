# Limitkeeper. `make test` is what a change has to pass; it needs Go and installs
# the rest itself.

# The tags leave out the old databases that Caddy links for its ACME server. The
# flags are those of xcaddy, so that everything is compiled once.
TAGS     := nobadger,nomysql,nopgx
export GOFLAGS := $(GOFLAGS) -trimpath -tags=$(TAGS)
FUZZTIME ?= 20000x

.PHONY: build test check race fuzz cover bench tools deps clean

build: ## the binary, in bin/
	go build -ldflags '-s -w' -o bin/limitkeeper ./cmd/limitkeeper

test: deps check race ## everything that a change has to pass

check: tools ## format, vet, staticcheck
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "not formatted:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	go vet ./...
	bin/staticcheck ./...

race: tools ## all tests under the race detector
	go test -race -timeout 20m ./...

fuzz: ## every fuzz target, FUZZTIME runs (20000x) or long (1m)
	@for pkg in $$(go list ./...); do \
		for target in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
			echo "$$pkg $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
		done; \
	done

cover: ## coverage of all packages by all tests
	go test -coverpkg=./... -coverprofile=bin/cover.out ./...
	go tool cover -func=bin/cover.out | tail -1

bench: ## measures Limitkeeper beside other programs; see bench/README.md
	bench/run

tools: bin/staticcheck bin/xcaddy ## the tools, built from the versions in tools/go.mod

bin/staticcheck bin/xcaddy &: tools/go.mod tools/go.sum
	GOFLAGS=-trimpath go -C tools build -o ../bin/ tool

deps: ## programs that the tests run and that are not Go
	@missing=; \
	command -v curl >/dev/null || missing="$$missing curl"; \
	command -v redis-server >/dev/null || missing="$$missing redis-server"; \
	test -z "$$missing" || { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $$missing; }

clean:
	rm -rf bin
