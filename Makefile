# Limitkeeper. `make test` is what a change has to pass; it needs Go and installs
# the rest itself.

# The tags leave out the old databases that Caddy links for its ACME server. The
# flags are those of xcaddy, so that everything is compiled once.
TAGS     := nobadger,nomysql,nopgx
export GOFLAGS := $(GOFLAGS) -trimpath -tags=$(TAGS)
FUZZTIME ?= 20000x

# The version of limitkeeper.go, between releases with the time and the commit. The Go command sees no commit in a worktree and in the
# sources of an image.
VERSION ?= $(shell tools/version)
OUT     ?= bin/limitkeeper

.PHONY: build dist test check race plain fuzz cover bench tools deps assets pictures screenshot clean

build: ## the binary, in bin/: static, and the same bytes from the same sources
	CGO_ENABLED=0 go build -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)' -o $(OUT) ./cmd/limitkeeper

dist: bin/cyclonedx-gomod ## the archives of a release, in bin/dist
	VERSION=$(VERSION) tools/dist bin/dist

test: deps check race plain ## everything that a change has to pass

check: tools ## format, vet, staticcheck, the workflows
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "not formatted:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	go vet ./...
	go -C bench vet ./...
	bin/staticcheck ./...
	cd bench && ../bin/staticcheck ./...
	bin/actionlint

# PLAIN_* are the tests that run without the race detector, which makes a test five times as slow. One goroutine or other
# processes do the work of these tests, or they repeat with another setting a test that runs with the race detector. The client of quic-go
# 0.63 that EarlyDataOverHTTP3 uses has a race of its own in early data, and Caddy 2.11.9 has one when a reload closes the connection of
# StreamsOverReload (hijackedConn.ReadFrom).
PLAIN_PACKAGES := ./deploy ./e2e ./storage/storetest
RACE_PACKAGES = $$(go list ./... | grep -vxF "$$(go list $(PLAIN_PACKAGES))")
# The slowest subtests of storetest. Each calls the store from one goroutine.
PLAIN_CASES := ^Test(Store|Conformance)$$/^(list|machine|reopen)$$|^Test(Store|Conformance)$$/^import$$/^machine$$|$\
	^Test(Store|Conformance)$$/^audit$$/^(number_of_entries|bytes)$$|^Test(Store|Conformance)$$/^counter$$/^many$$
PLAIN_TESTS := $(PLAIN_CASES)|^Test($\
	AccountHistoryBound|Again|ArchiveInParts|AttemptsAreBounded|BillingRecipes|BodyBounds|Bounds|BucketsInMemory|$\
	CappedSource|CappedTarget|CheckRecords|CheckWrongEvent|Compressed|ConformanceOnCluster|Contradictions|Copies|$\
	CutFiles|CutOff.*|Damaged.*|DaysOf.*|DeleteKeysOnLargePages|DeleteUserInterrupted|DeleteUserWithManyKeys|$\
	DenialsPerDay|DiskFilled(Slowly|AtOnce)|EarlyDataOverHTTP3|EventLogRefuses|EventsOfBatch|$\
	FailedCloseThenPowerCut|FlippedBytes|Generators|HistoryCursorGoesOn|HistoryOfAnUnsteadyClock|HoursAcrossCheckpoints|Image.*|$\
	ImportAgainAfterRevoke|ImportKilledAtAnyStep|ImportSmallCache|Interrupted|InterruptedFirstOpening|Invoice|$\
	Kill(Events|Feed|Holds|ed)?|KilledDuringImage|KilledReplay.*|KnownBrowser|LargeFile|LargeTransaction|Lost.*|$\
	ManyDeletions|MoreEventsThanFit|NoSpaceAfterRecord|NoSpaceAt(Record|Close|Part)|PagesAreThrottled|Password|$\
	Pictures|PlanAtBound|PowerCut.*|PurgeKilled|PurgeOnTwoNodes|Random(Bodies|Days|Holds)|Renew.*|Repair.*|$\
	ReplayWritesPages|ReportForms|ReportMemory|RequestsStreamMemory|RestoreAgain|RestoreBeyondMaxHistory|$\
	ReusedNumberPageAhead|RoundTrip.*|Search|SignInsAreLogged|Size|SmallerCounterCache|SmallerMemtable|$\
	SpecPagination|StartWithoutRoomToReplay|StorePower|StreamHistoryOfManyUsers|StreamsOverReload|SyncBeforeTable|$\
	ThresholdsOfFallenCounters|Throttle|ThrottleAgainstModel|UsageFeedOfMonth|VerifyBlocks|ZeroedRanges)$$
# Many tests wait: one package more than processors, the longest first. check has vetted them.
GO_TEST := go test -vet=off -timeout 30m -p $$(($$(nproc) + 1))

race: ## tests of concurrent code, under the race detector
	$(GO_TEST) -race -skip '$(PLAIN_TESTS)' ./storage/redisstore ./storage/badgerstore $(RACE_PACKAGES)
	$(subst go test,go -C bench test,$(GO_TEST)) -race ./...

plain: ## the other tests, without the race detector
	$(GO_TEST) $(PLAIN_PACKAGES)
	$(GO_TEST) -run '$(PLAIN_TESTS)' ./storage/badgerstore $(RACE_PACKAGES)

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

bench: ## measures Limitkeeper beside other programs; see docs/benchmarks.md
	bench/run

# Generators of clients, with which the tests check openapi.yaml. orval 7.13 is the last one for the Node.js of Debian.
GENERATORS := adminapi/testdata/generators

# The official clients of OpenAI and Anthropic, with which the tests check the gateway.
SDKS := caddymodule/testdata/sdk

tools: bin/staticcheck bin/xcaddy bin/cyclonedx-gomod bin/actionlint $(GENERATORS)/node_modules $(SDKS)/node_modules ## the tools, in the versions of tools/go.mod and package-lock.json

bin/staticcheck bin/xcaddy bin/cyclonedx-gomod bin/actionlint &: tools/go.mod tools/go.sum
	GOFLAGS=-trimpath go -C tools build -o ../bin/ tool

$(GENERATORS)/node_modules $(SDKS)/node_modules: %/node_modules: %/package-lock.json
	cd $* && npm ci
	@touch $@

# The programs that tests run, each with its package of Debian.
PROGRAMS := curl:curl jq:jq redis-server:redis-server chromium:chromium systemd-analyze:systemd zip:zip promtool:prometheus strace:strace /usr/sbin/nginx:nginx \
	node:nodejs npm:npm

deps: ## programs that the tests run and that are not Go
	@missing=; \
	for p in $(PROGRAMS); do command -v $${p%:*} >/dev/null || missing="$$missing $${p#*:}"; done; \
	test -z "$$missing" || { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $$missing; }

# What the dashboard has from elsewhere: its version, and the sum of the file.
HTMX := 2.0.11 d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717
AXE  := 4.14.1 29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c

assets: ## fetches htmx, and axe-core for the tests, from npm in the versions above
	@set -e; dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	fetch() { \
		npm pack --silent --pack-destination "$$dir" "$$1@$$2" >/dev/null; \
		tar -xzf "$$dir/$$1-$$2.tgz" -C "$$dir"; \
		echo "$$3  $$dir/package/$$4" | sha256sum -c -; \
		cp "$$dir/package/$$4" "$$5"; cp "$$dir/package/LICENSE" "$$6"; rm -rf "$$dir/package"; \
	}; \
	cd adminapi/dashboard; \
	fetch htmx.org $(HTMX) dist/htmx.min.js assets/htmx.min.js assets/htmx.LICENSE.txt; \
	fetch axe-core $(AXE) axe.min.js testdata/axe.min.js testdata/axe.LICENSE.txt

pictures: ## writes pictures of every page of the dashboard, and of the metrics, to bin/pictures
	LIMITKEEPER_SCREENSHOTS=$(CURDIR)/bin/pictures go test -count=1 -run TestPictures ./adminapi/dashboard
	LIMITKEEPER_SCREENSHOTS=$(CURDIR)/bin/pictures go test -count=1 -run TestPrometheus ./e2e

screenshot: pictures ## makes the picture in the README
	cp bin/pictures/overview-desktop-light.png docs/dashboard.png

clean:
	rm -rf bin
