# What a contributor needs. The only prerequisites are Go, git, make and a
# package manager: `make setup` installs the servers that the tests start.

.DEFAULT_GOAL := help
.PHONY: help setup check test test-quick soak whole bench lint fuzz cover

# The race detector needs a C compiler, and cgo where the environment turned
# it off.
RACE := CGO_ENABLED=1 go

# SQLite is one package of translated C, which the race detector makes twenty times slower. That package starts no goroutine and has no lock, so
# the detector learns nothing from it.
RACY := -race -gcflags='github.com/ncruces/go-sqlite3-wasm/...=-race=false'

# Four test binaries run at a time, and more tests in each than there are cores, because most
# tests wait: until a session ends, or a server is back.
TEST := $(RACE) test $(RACY) -timeout 40m
BUSY := -p 4 -parallel 4

# The packages that take longest begin early. Else the last of them runs alone.
ALL := ./engine/open ./internal/inboxtest ./cmd/... ./dtx/... ./outbox ./...

# The rows with a crowd measure how long a hand-over takes, so nothing runs beside them. They are rows of
# the tests in the files named conformance. Those of an engine that has a crowd elsewhere are left to `make soak`.
CROWD := a_crowd_of_waiters
CONFORMANCE = $$(sed -n 's/^func \(Test[A-Za-z0-9]*\)(t .*/\1/p' engine/*/conformance*_test.go engine/*/*/conformance*_test.go | sort -u | paste -s -d '|' -)
AGAIN := Cluster|Etcd3|NATS3|PostgresRowDB|PostgresUnlogged|RedisSentinel|RedisWait1|Redlock5With2Dead|Wait1|ZooKeeper3
NOCROWD := ^Test(NATSPermissions|RedisACL|RedisClusterACL|RedisSentinelACL|ZooKeeperLeaderFails|$(AGAIN))$$

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install the servers that the tests start, and a C compiler, where they are missing
	@scripts/setup

# vet in race mode compiles what the tests need, on all cores. Where there is no Unix
# there is the command without run and elect.
check: setup
	@files=$$(gofmt -l .) || exit; if [ -n "$$files" ]; then echo "not formatted (gofmt -w):"; echo "$$files"; exit 1; fi
	$(RACE) vet $(RACY) ./...
	GOOS=windows CGO_ENABLED=0 go build -o /dev/null ./cmd/pawl

# What shows most on servers with the settings of their makers: durable, and slower.
SHIPPED := ^Test(Redis|PostgresLease|PostgresUnlogged|MariaDBLease|Etcd|ZooKeeper)$$/^(one_holds|first_come_first_served|barging|tokens_grow|permits_have_weight|a_lost_reply_counts_once|a_crashed_holder_is_followed_in_time)$$

# A failure of a part does not hide those of the next. scripts/test runs a test that failed once more, and says so.
test: check ## Run all tests, with the race detector, against real servers
	failed=0; \
	scripts/test $(RACY) -timeout 40m $(BUSY) -skip '/$(CROWD)' -- $(ALL) || failed=1; \
	scripts/test $(RACY) -timeout 40m -p 1 -parallel 1 -run "^($(CONFORMANCE))\$$/$(CROWD)" -skip '$(NOCROWD)' -- ./engine/... || failed=1; \
	PAWL_TEST_AS_SHIPPED=1 scripts/test $(RACY) -timeout 40m -parallel 4 -run '$(SHIPPED)' -- ./engine/open || failed=1; \
	exit $$failed

# Packages whose tests need a server import internal/testservers. TestQuick looks whether all of them do.
QUICK = $$(go list -f '{{.ImportPath}} {{.TestImports}} {{.XTestImports}}' ./... | grep -v internal/testservers | cut -d ' ' -f 1)

# These rows wait for most of a minute. make test has them.
LONG = '/a_(crowd_of_waiters|name_that_hangs)'

test-quick: ## Run the tests that need no server: the rules, the root, memory and SQLite; less than two minutes
	go test -parallel 8 -skip $(LONG) $(QUICK)
	go test -parallel 8 -run '^Test(Memory|SQLite)$$' -skip $(LONG) ./engine/open

# As in make test, a failure of a part does not hide those of the next.
soak: setup ## Lock and unlock 100,000 names on SQLite, Redis and etcd; kill processes again and again; make 10^8 IDs of each kind; send 10^6 messages; have 5,000 wait; servers as shipped
	failed=0; \
	go test -count 1 -v -timeout 30m -run NothingStays ./engine/open || failed=1; \
	PAWL_TEST_AS_SHIPPED=1 go test -count 1 -v -timeout 60m -parallel 1 -skip '/a_crowd_of_waiters' -run '^Test(Redis|Postgres(Lease|Unlogged|Row)|MariaDB(Lease|Row)|Etcd|ZooKeeper)$$' ./engine/open || failed=1; \
	go test -count 1 -v -timeout 30m -p 1 -parallel 1 -run '^Test($(AGAIN))$$/a_crowd_of_waiters' ./engine/open ./engine/redisengine/goredis || failed=1; \
	PAWL_TEST_SOAK=1 go test -count 1 -v -timeout 3h ./internal/processtest || failed=1; \
	PAWL_TEST_SOAK=1 go test -count 1 -v -p 1 -timeout 60m ./engine/etcdengine ./engine/pgengine ./engine/redisengine ./engine/sqliteengine ./engine/zkengine ./group || failed=1; \
	PAWL_TEST_SOAK=1 go test -count 1 -v -timeout 60m ./internal/idprocesstest || failed=1; \
	PAWL_TEST_SOAK=1 go test -count 1 -v -timeout 30m -parallel 1 ./internal/lbprocesstest || failed=1; \
	PAWL_TEST_SOAK=1 go test -count 1 -v -timeout 60m -run TestKilledProcesses ./idem/sqlidem || failed=1; \
	PAWL_TEST_SOAK=1 go test -count 1 -v -timeout 180m ./internal/idemleasetest || failed=1; \
	PAWL_TEST_SOAK=1 go test -count 1 -v -timeout 8h -parallel 1 -run '^TestKilled$$' ./outbox || failed=1; \
	PAWL_TEST_SOAK=1 go test -count 1 -v -timeout 24h -parallel 1 -run '^TestWhole' ./internal/inboxtest || failed=1; \
	PAWL_TEST_SOAK=1 go test -count 1 -v -timeout 180m ./dtx/... || failed=1; \
	PAWL_TEST_SOAK=1 go test -count 1 -v -timeout 30m -run 'TestNeverOversold|TestCluster' ./idem/stock ./idem/redisstock || failed=1; \
	PAWL_TEST_SOAK=1 go test -count 1 -v -timeout 3h -parallel 1 -run '^Test(Redis|RedisCluster|Redlock5|PostgresLease|MariaDBLease|Etcd|ZooKeeper|NATS|SQLite|Memory)$$/a_crowd_of_waiters' ./engine/open || failed=1; \
	PAWL_TEST_SOAK=1 go test -count 1 -v -timeout 60m -parallel 1 -run '^Test(Server|Cluster)$$/a_crowd_of_waiters' ./engine/redisengine/goredis || failed=1; \
	exit $$failed

# 10^5 messages go from one database to one broker and through the inbox, while all processes and servers are killed. CI names
# a PAIR for each machine, and `make test` sends fewer.
whole: setup ## Send 10^5 messages through an outbox, a broker and an inbox, in each of five pairs of servers, or in PAIR=MySQL/nats
	PAWL_TEST_MESSAGES=100000 go test -count 1 -v -timeout 4h -parallel 1 -run '^TestWhole$$/$(PAIR)' ./internal/inboxtest

bench: setup ## Run the benchmarks, each beside its floor, on tuned servers and as shipped
	failed=0; \
	go test -run '^$$' -bench . -timeout 60m ./bench || failed=1; \
	PAWL_TEST_AS_SHIPPED=1 go test -run '^$$' -bench 'Uncontended|Parallel|Row|Logged|Handoff|Idle|Redlock|Stock|Transactions|Outbox' -timeout 60m ./bench || failed=1; \
	go -C bench/rivals test -mod=mod -run '^$$' -bench . -benchtime 4s . || failed=1; \
	exit $$failed

lint: ## Run golangci-lint
	@command -v golangci-lint >/dev/null || { echo "golangci-lint 2 is not installed: https://golangci-lint.run/docs/welcome/install/"; exit 1; }
	golangci-lint run

fuzz: ## Fuzz the queue for 30 seconds, and requests over HTTP for 10
	go test -run '^$$' -fuzz '^FuzzApply$$' -fuzztime 30s ./internal/queuetest
	go test -run '^$$' -fuzz '^FuzzRequest$$' -fuzztime 10s ./idem/httpidem

cover: setup ## Run all tests and say which code they did not reach
	@mkdir -p .cache
	$(TEST) $(BUSY) -coverpkg ./... -coverprofile .cache/cover.out $(ALL)
	go tool cover -func .cache/cover.out | tail -1
	@echo "by line: go tool cover -html .cache/cover.out"
