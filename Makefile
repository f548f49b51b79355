# neardns: make targets. The work is done by Go; what stands here only names it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

GO ?= go
FUZZTIME ?= 30s
BENCH ?= .
BENCHCOUNT ?= 10
# fleet/controller is `make test-controller`'s: with the race detector, what it links takes minutes to compile.
PKGS ?= $(shell $(GO) list ./... | grep -v -e /fleet/controller -e /fleet/api)
TESTTIMEOUT ?= 20m
ENGINE ?= podman
TAG ?= dev
# By Go's name. Debian 12's qemu does not start what Debian has as later arm64 kernels.
ARCH ?=
KERNELS ?= $(if $(ARCH),6.1,6.1 5.10 6.12)

# The products are static. Their version comes from the build information, which the go command can stamp only where git
# trusts this clone; elsewhere (another owner's clone, a tarball) the version is "unknown", and the build does not fail.
VCS := $(shell git rev-parse --verify -q HEAD >/dev/null 2>&1 && git status --porcelain >/dev/null 2>&1 && echo true || echo false)
BUILD := $(GO) build -ldflags '-s -w'
# Products, tools, tests and linters are compiled in one way, so that the cache has each package once; but for the race detector and arm64.
export CGO_ENABLED := 0
export GOFLAGS := $(strip $(GOFLAGS) -trimpath)
TESTRUN := $(GO) run ./integration/tools/testrun
# The tests that the requirements name have to run wherever their packages do.
CITED := -cited docs/project/requirements.md,fleet/docs/requirements.md
# Shows what the tests of the folder $(1) print (go test -v), and holds them to the requirements that name them.
cited = tee >(grep --line-buffered -aE '^ *(---|$(2)ok|FAIL|PASS|panic)|_test.go:' >&2) | $(GO) tool test2json -p github.com/neardns/neardns/$(1) | CI= $(TESTRUN) -events - $(CITED)
# A lane of .ci/lanes.txt that passed says so there: this very target with the variables of this command line.
PASSED = @.ci/lanes -ran "make $@ $(filter-out STALE=%,$(MAKEOVERRIDES))"
# For targets that `build` comes before: tests take the products from there (integration/programs).
BUILT := NEARDNS_BUILT=$(CURDIR)/bin
# Unit and kernel tests measure nothing and wait most of their time. The longest packages are split into their tests.
LANES := -p 2 -shards 5 -split ./integration/nodelocal,./fleet/zones/zonewriter,./integration/steering,./pkg/steer/nft,./pkg/steer/iptables
# The race detector makes a test take five times as long. These do without: the tests of integration start programs, which are built without
# it, and the others run in one goroutine.
PLAIN := ./integration,./fleet/zones/zone,./fleet/zones/adopt,./agent/internal/pods/podstate,./agent/internal/inspect/bundle
# It reports a race when it happens. The second that it sleeps at the end of each process by default is only for
# goroutines that outlive the last test.
export GORACE ?= atexit_sleep_ms=0
# Where tests record what they showed of the compatibility tables, for `make compat`.
export NEARDNS_COMPAT := $(CURDIR)/bin/compat
# Each of these records has the commit that it was taken at. Pages and results that a target has drawn are no change of the code.
export NEARDNS_COMMIT := $(shell git rev-parse -q --short=8 HEAD 2>/dev/null)$(shell [ -z "$$(git status --porcelain -- '*.go' '*.c' '*.mod' install 2>/dev/null)" ] || echo -dirty)

# Tools, by the path that hack/tools/go.mod and hack/lint/go.mod pin.
CNI := github.com/containernetworking
TOOL_cnitool := $(CNI)/cni/cnitool
TOOL_ptp := $(CNI)/plugins/plugins/main/ptp
TOOL_bridge := $(CNI)/plugins/plugins/main/bridge
TOOL_macvlan := $(CNI)/plugins/plugins/main/macvlan
TOOL_loopback := $(CNI)/plugins/plugins/main/loopback
TOOL_host-local := $(CNI)/plugins/plugins/ipam/host-local
TOOL_portmap := $(CNI)/plugins/plugins/meta/portmap
TOOL_coredns := ./coredns
TOOL_actionlint := github.com/rhysd/actionlint/cmd/actionlint
TOOL_benchstat := golang.org/x/perf/cmd/benchstat
TOOL_golangci-lint := github.com/golangci/golangci-lint/v2/cmd/golangci-lint
TOOL_vale := github.com/vale-cli/vale/v3/cmd/vale
CNI_TOOLS := $(addprefix bin/tools/,cnitool ptp bridge macvlan loopback host-local portmap)
# The second of the two releases that the runtimes' tests know; the first is Debian's.
CONTAINERD := $(addprefix bin/tools/containerd2/,containerd ctr containerd-shim-runc-v2)
# One node of a Kubernetes cluster; built anew when its module file changes, and found by its release.
K8S_MOD := integration/cluster/kubernetes/go.mod
K8S_VERSION := $(shell sed -n 's,^require k8s.io/kubernetes \(v[0-9.]*\)$$,\1,p' $(K8S_MOD))
K8S_DIR := bin/tools/k8s-$(K8S_VERSION)
K8S := $(addprefix $(K8S_DIR)/,etcd kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubectl kubelet)
K8S_AT_etcd := go.etcd.io/etcd/server/v3
K8S_AT_agnhost := k8s.io/kubernetes/test/images/agnhost
K8S_AT_ginkgo := github.com/onsi/ginkgo/v2/ginkgo
E2E := $(addprefix $(K8S_DIR)/,agnhost e2e.test ginkgo)
# What `arrangement: transparent` is tried beside, found by its release as well. Its agent compiles its BPF programs itself.
CILIUM_MOD := integration/cilium/go.mod
CILIUM_DIR := bin/tools/cilium-$(shell sed -n 's,.*github.com/cilium/cilium \(v[0-9.]*\).*,\1,p' $(CILIUM_MOD))
CILIUM_AT_cilium-agent := github.com/cilium/cilium/daemon
CILIUM_AT_cilium-cni := github.com/cilium/cilium/plugins/cilium-cni
K8S_LD := -s -w -X k8s.io/component-base/version.gitVersion=$(K8S_VERSION) -X k8s.io/component-base/version.gitMajor=$(word 1,$(subst ., ,$(K8S_VERSION:v%=%))) -X k8s.io/component-base/version.gitMinor=$(word 2,$(subst ., ,$(K8S_VERSION)))
CLUSTER_TOOLS := $(CNI_TOOLS) bin/tools/coredns bin/tools/cluster bin/tools/podimage $(K8S)
TEST_TOOLS := $(CNI_TOOLS) bin/tools/coredns

.PHONY: help bpf build images release push release-check demo demo-clean test test-arm64 test-images test-unit test-timing test-all test-next test-runtimes test-vm test-resolvers test-kubelet-dns test-manifests test-controller test-hosts compat compat-check cluster cluster-down test-cluster conformance fuzz bench bench-check bench-keep bench-deps bench-edge bench-go faults cutoff dashboard-picture scale benefit soak lint fmt cover update-golden deps tools clean FORCE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' Makefile

build: bin/neardns bin/neardns-agent bin/neardns-install bin/neardns-iptables bin/kubectl-neardns bin/neardns-controller bin/neardns-edge ## build the plugin, the agent, the installer and the plugin of kubectl, and the controller and the edge of fleet/, into bin/

bin/neardns: FORCE
	@$(BUILD) -buildvcs=$(VCS) -o $@ ./plugins/neardns
bin/neardns-agent: FORCE
	@$(BUILD) -buildvcs=$(VCS) -o $@ ./agent
bin/neardns-install: FORCE
	@$(BUILD) -buildvcs=$(VCS) -o $@ ./install
bin/neardns-iptables: FORCE
	@$(BUILD) -buildvcs=$(VCS) -o $@ ./agent/iptables
bin/kubectl-neardns: FORCE
	@$(BUILD) -buildvcs=$(VCS) -o $@ ./agent/kubectl
bin/neardns-controller: FORCE
	@$(BUILD) -buildvcs=$(VCS) -o $@ ./fleet/controller
bin/neardns-edge: FORCE
	@$(BUILD) -buildvcs=$(VCS) -o $@ ./fleet/edge

# Without BASE nothing is asked of a registry: the base is then made here of Debian's packages.
images: build ## build the images (ENGINE=podman, BASE=an image of Debian, TAG=dev, ARCHIVE=a folder for docker archives)
	@[ -n "$(BASE)" ] || integration/tools/deps $(firstword $(ENGINE)):$(firstword $(ENGINE)) mmdebstrap:mmdebstrap
	@ENGINE="$(ENGINE)" BASE="$(BASE)" TAG="$(TAG)" ARCHIVE="$(ARCHIVE)" integration/tools/images

test-images: build ## build the images with podman in a store of its own, and run them as a node does (as root)
	@integration/tools/deps podman:podman runc:runc mmdebstrap:mmdebstrap
	@$(GO) test -count=1 -timeout 20m -tags images -v ./integration/podman | $(call cited,integration/podman) -tags images
	@cd integration/cluster && $(GO) test -count=1 ./node # the real node's images are of the same Dockerfiles

RELEASE := $(GO) run ./integration/release
release: ## all that people take of a version, into dist/: programs, images, manifests for amd64 and arm64, what is inside, checksums (VERSION=v0.1.0, PARTS=programs,images,manifests,lists; as root)
	@integration/tools/deps podman:podman runc:runc mmdebstrap:mmdebstrap arch-test:arch-test qemu-aarch64-static:qemu-user-static
	@$(RELEASE) -version "$(VERSION)" -out dist $(if $(PARTS),-parts $(PARTS))

push: ## copy a release's images to your registry, and write their names into dist/values.yaml and dist/images for chart and kustomize (VERSION=v0.1.0, REGISTRY=registry.example/dns, INSECURE=1: without TLS)
	@integration/tools/deps skopeo:skopeo
	@$(RELEASE) -version "$(VERSION)" -out dist -push "$(REGISTRY)" $(if $(INSECURE),-insecure)

# The second time with a Go cache of its own: nothing of the first is taken over.
CHECKED := bin/release-check
release-check: ## make the release twice, in two fresh clones, and compare the checksums (VERSION=v0.1.0, PARTS=programs,manifests; as root; an hour)
	@rm -rf $(CHECKED)
	@for n in first second; do git clone -q . $(CHECKED)/$$n; done
	@$(MAKE) -C $(CHECKED)/first release
	@GOCACHE=$(CURDIR)/$(CHECKED)/cache $(MAKE) -C $(CHECKED)/second release
	@diff $(CHECKED)/first/dist/SHA256SUMS $(CHECKED)/second/dist/SHA256SUMS && cat $(CHECKED)/first/dist/SHA256SUMS
	@rm -rf $(CHECKED)

demo: deps build tools bin/tools/demo ## show a node, its pods, a hit, a killed agent and the fallback (KEEP=1 leaves it standing; PROXY=nftables)
	@KEEP="$(KEEP)" PROXY="$(PROXY)" bin/tools/demo

demo-clean: bin/tools/demo ## take away what make demo KEEP=1 left
	@bin/tools/demo -clean

# Built, not run by `go run`, which would not pass a SIGTERM on.
bin/tools/demo: FORCE
	@$(BUILD) -buildvcs=false -o $@ ./integration/demo

# The zone servers that shared zones are tried with; pkg/testutil/zoneserver names the same. By strace their disk stalls.
ZONESERVERS := named:bind9 nsupdate:bind9-dnsutils knotd:knot pdns_server:pdns-backend-sqlite3 pdnsutil:pdns-server sqlite3:sqlite3 strace:strace
# Where addresses are, and a reader to compare with (fleet/edge/geo).
GEODATA := /usr/share/tor/geoip:tor-geoipdb mmdblookup:mmdb-bin
# By which the kernel's program is compiled: one release, so that its object comes out the same everywhere.
BPF := clang-14:clang-14 llvm-strip-14:llvm-14 /usr/include/bpf/bpf_helpers.h:libbpf-dev
# By which a release goes to a registry (integration/release).
PUSH := skopeo:skopeo docker-registry:docker-registry
TEST_DEPS := $(PUSH) $(ZONESERVERS) $(GEODATA) $(BPF)
test: deps build tools ## unit and kernel tests with the race detector; nothing is measured, nothing is tried twice (LOG=a file that records the result; as root)
	@integration/tools/deps $(TEST_DEPS)
	@$(BUILT) $(TESTRUN) -race -plain $(PLAIN) $(LANES) -timeout $(TESTTIMEOUT) -longest 20 -allowed-skips .ci/allowed-skips -quarantine .ci/quarantine $(CITED) $(if $(LOG),-log $(LOG)) $(PKGS)

test-unit: ## unit tests: no root, no real clock, nothing but Go
	@$(TESTRUN) -short -p 2 $(PKGS)

# One package at a time and nothing next to it: these tests judge durations, losses under load and ratios. Only packages that have
# such tests are built: with their tag, all others would be compiled once more.
TIMED = $(if $(filter file,$(origin PKGS)),$(shell grep -rl --include='*_test.go' --exclude-dir=testdata --exclude-dir=bin '^func TestTiming$(if $(SHORT),Short)' . | xargs -n1 dirname | sort -u),$(PKGS))
test-timing: deps build tools bin/tools/faults bin/tools/bench ## what promises a time, a loss under load or a ratio, by itself; SHORT=1: the short forms, each judged by a control of the same run; RUN=a regular expression, PKGS (as root)
	@integration/tools/deps $(TEST_DEPS) $(PEERS)
	@$(BUILT) $(TESTRUN) -tags timing -run '$(or $(RUN),$(if $(SHORT),^TestTimingShort,^TestTiming))' -p 1 -timeout 60m -longest 20 $(CITED) $(TIMED)
	$(PASSED)

# test comes after what draws pages: it reads them.
test-all: ## everything that runs on one machine, one after the other, with the tables that it draws: some hours, once a week (STALE=1: without lanes that passed and that no commit has touched since; as root)
	@failed=; for target in test-timing lint test-kubelet-dns test-manifests test-controller shared-zones test-images test-runtimes test-resolvers test-hosts demo demo-zones test-vm 'test-cluster KERNEL=1' conformance scale test compat; do \
		printf '\n== make %s\n' "$$target"; $(if $(STALE),.ci/lanes -current "make $$target" ||) $(MAKE) $$target || failed="$$failed $$target"; done; [ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }
	$(PASSED)

# docs/project/testing.md lists what is left out, and why. -exec reaches tests alone: the program that counts them runs as this machine's.
ARM64 ?= $(shell $(GO) list ./pkg/... ./plugins/... ./agent/... ./internal/... ./fleet/edge/... ./fleet/zones/... | grep -v -e /internal/hostsfile$$ -e /offload/bpf$$ -e /dns/server$$)
ARM64_SKIP := ^(TestNoGoroutinePerMiss|TestNoDescriptors|TestTag)$$
test-arm64: ## the unit tests, built for arm64 and run by qemu-user: no kernel of arm64, and nothing of it in this one (ARM64=./pkg/podfile: other packages)
	@integration/tools/deps qemu-aarch64-static:qemu-user-static unshare:util-linux
	@$(BUILD) -buildvcs=false -o bin/tools/testrun ./integration/tools/testrun
	@GOARCH=arm64 GOFLAGS='-exec=$(CURDIR)/integration/tools/arm64 -skip=$(ARM64_SKIP)' CI= bin/tools/testrun -short -p 2 -timeout $(TESTTIMEOUT) $(ARM64)

test-next: ## build and test a copy with the newest CoreDNS and the newest modules; go.mod stays (ALL=1: all of make test; as root)
	@GO="$(GO)" integration/tools/next $(if $(ALL),all,quick)

test-runtimes: deps build tools $(CONTAINERD) ## drive the products by real runtimes: containerd 1.6 (Debian) and 2 by CRI, Podman; cnitool and CRI-O's calls are in make test (as root)
	@integration/tools/deps containerd:containerd runc:runc podman:podman
	@(cd integration/runtimes && $(GO) test -count=1 -timeout 20m -v .) | $(call cited,integration/runtimes)
	$(PASSED)

# systemd-resolved is unpacked, not installed: its package would change this machine's own resolv.conf.
RESOLVED := bin/tools/resolved
test-resolvers: deps build tools ## stub resolvers in pods hear the same from the cache, by hits of the agent and of the kernel, as from kube-dns: glibc, musl, Go, c-ares, Java, dig, systemd-resolved (as root)
	@integration/tools/deps javac:default-jdk-headless /usr/include/ares.h:libc-ares-dev
	@[ -e $(RESOLVED) ] || { mkdir -p $(RESOLVED).new && cd $(RESOLVED).new && apt-get download -q systemd-resolved && dpkg -x systemd-resolved_*.deb . && cd - && mv $(RESOLVED).new $(RESOLVED); }
	@$(BUILT) NEARDNS_RESOLVED=$(CURDIR)/$(RESOLVED)/lib/systemd/systemd-resolved $(GO) test -tags resolvers -count=1 -timeout 20m -run '^TestResolver' -v ./integration/steering | grep -E '^ *(---|ok|FAIL|PASS|panic)|_test.go:'
	$(PASSED)

.PHONY: test-cilium
test-cilium: deps build tools $(addprefix $(CILIUM_DIR)/,cilium-agent cilium-cni bpf) ## arrangement: transparent beside Cilium in kube-proxy's place, built here (as root); the first build takes minutes
	@integration/tools/deps clang-19:clang-19
	@$(BUILT) NEARDNS_CILIUM=$(CURDIR)/$(CILIUM_DIR) $(GO) test -tags cilium -count=1 -timeout 20m -run '^TestCilium' -v ./integration/steering | grep -E '^ *(---|ok|FAIL|PASS|panic)|_test.go:'
	$(PASSED)

$(CILIUM_DIR)/bpf: $(CILIUM_MOD)
	@rm -rf $@ && mkdir -p $(dir $@)
	@cp -r --no-preserve=mode,timestamps "$$(cd integration/cilium && $(GO) mod download github.com/cilium/cilium && $(GO) list -m -f '{{.Dir}}' github.com/cilium/cilium)/bpf" $@
$(CILIUM_DIR)/%: $(CILIUM_MOD)
	@echo "building $*"
	@cd integration/cilium && $(BUILD) -buildvcs=false -o $(abspath $@) $(CILIUM_AT_$*)

# Of the tests that requirements name, these are in the plan of each kernel and architecture.
VMCITED = $(if $(RUN),,$(CITED) -run '^(TestEnsureMakesLink|TestMatrix)$$')
VMFLAGS = $(if $(ARCH),-arch $(ARCH)) $(if $(ONLY),-only '$(ONLY)') $(if $(RUN),-run '$(RUN)') $(if $(ACCEL),-accel $(ACCEL)) $(if $(GUESTS),-guests $(GUESTS)) $(if $(BACKENDS),-backends $(BACKENDS))
test-vm: bin/tools/vm ## run the kernel's tests on Debian's kernels in qemu, by software emulation (KERNELS="6.1 5.10 6.12", ARCH=arm64, ONLY, RUN, BACKENDS=nftables,iptables-legacy, GUESTS=1, ACCEL=kvm)
	@integration/tools/deps $(if $(filter arm64,$(ARCH)),qemu-system-aarch64:qemu-system-arm mmdebstrap:mmdebstrap,qemu-system-x86_64:qemu-system-x86) ipvsadm:ipvsadm ipset:ipset depmod:kmod
	@for kernel in $(KERNELS); do bin/tools/vm -kernel $$kernel $(VMFLAGS) | CI=true $(TESTRUN) -events - -allowed-skips integration/vm/allowed-skips $(VMCITED); done
	$(PASSED)

# Built, not run by `go run`, which would not pass a SIGTERM on; it is also the guest's init.
bin/tools/vm: FORCE
	@$(BUILD) -buildvcs=false -o $@ ./integration/vm

test-kubelet-dns: ## compare pkg/resolvconf with the kubelet's own code (CASES=20000, SEED=1); the first build takes minutes
	@(cd integration/kubelet-dns && nice $(GO) test -count=1 -timeout 20m -v . -args $(if $(CASES),-cases $(CASES)) $(if $(SEED),-seed $(SEED))) | $(call cited,integration/kubelet-dns)

test-manifests: ## render install/ and fleet/install/ as kubectl does, read it as an API server does, compare with the golden files
	@(cd integration/cluster-manifests && $(GO) test -count=1 -json ./...) | CI= $(TESTRUN) -events - $(CITED)

# The control plane's first build takes up to ten minutes.
PLANE := $(addprefix $(K8S_DIR)/,etcd kube-apiserver kube-controller-manager kube-scheduler kubectl)
test-controller: bin/neardns-controller $(if $(SHORT),,$(PLANE)) ## the controller beside a store of objects, then beside real control planes: nodes are objects, and two clusters share zones of BIND, Knot and PowerDNS (SHORT=1: the first alone)
	@integration/tools/deps $(ZONESERVERS)
	@$(GO) test -count=1 -timeout 30m -json ./fleet/controller/... ./fleet/api/... | CI= $(TESTRUN) -events - $(CITED)
	@[ -n "$(SHORT)" ] || (cd integration/controlplane && $(GO) test -count=1 -timeout 60m -v .) | $(call cited,integration/controlplane)
	$(PASSED)

compat: ## take what the tests recorded since the last time into docs/reference/compatibility.md
	@$(GO) run ./integration/tools/compat
	@.ci/lanes -mark

compat-check: ## fail where the tests since then showed anything but what those tables say
	@$(GO) run ./integration/tools/compat -check

cluster: deps-cluster build $(CLUSTER_TOOLS) $(CONTAINERD) ## bring up a real Kubernetes node with neardns on it, and show it (NODES=2, PROXY=nftables, RUNTIME=containerd2, BARE=1); the first build takes a quarter of an hour
	@bin/tools/cluster up $(if $(NODES),-nodes $(NODES)) $(if $(PROXY),-proxy $(PROXY)) $(if $(RUNTIME),-runtime $(RUNTIME)) $(if $(BARE),-bare)

cluster-down: bin/tools/cluster ## take away what make cluster left standing
	@bin/tools/cluster down

# The products of an earlier commit, to upgrade from.
EARLIER := bin/earlier
test-cluster: CITED := $(if $(FROM)$(ONLY),,$(CITED))
test-cluster: deps-cluster build bin/tools/faults $(CLUSTER_TOOLS) $(CONTAINERD) ## end to end on real Kubernetes nodes (MODE=iptables or nftables, RUNTIME=containerd16 or containerd2; both of both; KERNEL=1: with hits in the kernel; ONLY=TestRollout: in steps, on two nodes, nothing else; FROM=a commit: upgraded from it and rolled back, nothing else)
	@integration/tools/deps docker-registry:docker-registry
	@[ -z "$(FROM)" ] || { rm -rf $(EARLIER) && git clone -q --shared --no-checkout . $(EARLIER) && git -C $(EARLIER) checkout -q --detach $$(git rev-parse --verify '$(FROM)^{commit}') && \
		$(MAKE) -C $(EARLIER) FROM= $(addprefix bin/,neardns neardns-agent neardns-install neardns-iptables); }
	@[ -n "$(FROM)" ] || (cd integration/cluster && $(GO) test -count=1 ./conformance ./node)
	@(cd integration/cluster && $(GO) test -count=1 -timeout 120m -v $(if $(FROM),-run,-skip) '^TestEarlier$$' $(if $(ONLY),-run '$(ONLY)') ./endtoend -args $(if $(FROM),-from $(CURDIR)/$(EARLIER)) $(if $(MODE),-proxy $(MODE)) $(if $(RUNTIME),-runtime $(RUNTIME)) $(if $(KERNEL),-kernel)) | $(call cited,integration/cluster/endtoend,===|)
	$(PASSED)

# The suite and its programs are of the release that the node runs.
CONFORM = $(if $(PROXY),-proxy $(PROXY)) $(if $(ON),-on $(ON)) $(if $(RUNTIME),-runtime $(RUNTIME))
conformance: deps-cluster build $(CLUSTER_TOOLS) $(CONTAINERD) $(E2E) ## Kubernetes' own DNS tests on a real node, bare, with neardns, and with its agent killed every 20 s; draws docs/project/conformance.md: half an hour (PROXY=iptables, ON=bare,neardns,killed, RUNTIME=containerd2; as root)
	@integration/tools/deps mmdebstrap:mmdebstrap
	@bin/tools/cluster conformance $(CONFORM)
	$(PASSED)

deps-cluster: deps
	@integration/tools/deps containerd:containerd runc:runc nsenter:util-linux

$(K8S_DIR)/e2e.test: $(K8S_MOD) $(dir $(K8S_MOD))e2e/e2e_test.go
	@echo "building e2e.test (Kubernetes $(K8S_VERSION))"
	@cd $(dir $(K8S_MOD)) && nice $(GO) test -c -buildvcs=false -ldflags '$(K8S_LD)' -o $(abspath $@) ./e2e
$(K8S_DIR)/%: $(K8S_MOD)
	@echo "building $* (Kubernetes $(K8S_VERSION))"
	@cd $(dir $(K8S_MOD)) && nice $(GO) build -buildvcs=false -ldflags '$(K8S_LD)' -o $(abspath $@) $(or $(K8S_AT_$*),k8s.io/kubernetes/cmd/$*)

# Built, not run by `go run`: it is also the first process of the node.
bin/tools/cluster: FORCE
	@cd integration/cluster && $(BUILD) -buildvcs=false -o $(abspath $@) .
bin/tools/podimage: FORCE
	@cd integration/runtimes && $(BUILD) -buildvcs=false -o $(abspath $@) ./podimage

cutoff: deps build tools ## who is cut off from whom, and what pods see of it, cell by cell; draws the tables of docs/project/faults.md (as root)
	@$(BUILT) NEARDNS_CUTOFF=$(CURDIR)/docs/project/faults.md $(GO) test -tags cutoff -count=1 -timeout 60m -parallel 6 -p 1 -run '^TestCutOff$$' -v ./integration/steering ./integration/nodelocal | grep -E '^ *(---|ok|FAIL|PASS|panic)|cutoff_test.go:'

dashboard-picture: build bin/tools/faults ## draw docs/pictures/dashboard.png: the dashboard over an agent under load for two minutes, by Prometheus's graphs in a browser (as root)
	@integration/tools/deps chromium-headless-shell:chromium-headless-shell /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf:fonts-dejavu-core
	@NEARDNS_PICTURE=$(CURDIR)/docs/pictures/dashboard.png $(GO) test -tags picture -count=1 -timeout 10m -run '^TestPicture$$' -v ./integration/monitoring | grep -aE '^ *(---|ok|FAIL|PASS|panic)|_test.go:'

SCALE := integration/steering/testdata/scale.json
scale: deps build tools ## a node of 110 pods, repairs beside 2,000 Services without endpoints, 100 nodes on one kube-dns: times, memory, losses; draws docs/project/scale.md (ONLY=Node, Repair or Cluster; NEARDNS_NODES=30: fewer nodes; as root; ten minutes)
	@$(BUILT) NEARDNS_SCALE=$(CURDIR)/$(SCALE) $(GO) test -tags scale,timing -count=1 -timeout 40m -run '^TestScale$(ONLY)' -v ./integration/steering | $(call cited,integration/steering) -tags scale,timing -run '^TestScale$(ONLY)'
	@$(GO) test -count=1 -run '^TestScale$$' ./integration/docs -update
	$(PASSED)

test-hosts: build ## the role hosts in full (as root): the file written 10,000 times beside a reader, the writer killed at 1,000 random moments, in both ways and in OpenShift's; ten minutes of trouble with kube-dns; a quarter of an hour
	@NEARDNS_HOSTS_KILLS=1000 $(GO) test -count=1 -timeout 60m -run '^TestKilledWriter$$' -v ./agent/internal/hostsfile | grep -E '^ *(---|ok|FAIL|PASS|panic)|_test.go:'
	@$(BUILT) NEARDNS_HOSTS_MINUTES=10 $(GO) test -tags timing -count=1 -timeout 60m -run '^TestTimingHostsInTrouble$$' -parallel 12 -v ./agent | grep -E '^ *(---|ok|FAIL|PASS|panic)|_test.go:'
	$(PASSED)

# At the end of a target's time, Go 1.26 may report its own deadline as a failure (golang/go#75804). A finding names its input.
fuzz: ## search for new failing inputs, each target for FUZZTIME (30s); what is found is in the package's testdata
	@trap 'exit 130' INT; failed=0; for package in $(PKGS); do \
		targets=$$($(GO) test -list '^Fuzz' $$package) || { echo "$$targets"; failed=1; continue; }; \
		for target in $$(grep ^Fuzz <<<"$$targets"); do \
			out=$$($(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package 2>&1) || \
				{ grep -q 'context deadline exceeded' <<<"$$out" && ! grep -q 'Failing input' <<<"$$out"; } || failed=1; \
			echo "$$target: $$out"; done; done; exit $$failed

# The servers that neardns is measured beside, dnsperf, and what draws PNG.
PEERS := unbound:unbound dnsmasq:dnsmasq-base kresd:knot-resolver dnsdist:dnsdist pdns_recursor:pdns-recursor dnsperf:dnsperf rsvg-convert:librsvg2-bin taskset:util-linux
BENCHRUN = bin/tools/bench $(if $(SHORT),-short) $(if $(ROUNDS),-rounds $(ROUNDS)) $(if $(WITH),-with $(WITH)) $(if $(WORKLOADS),-workloads $(WORKLOADS)) $(if $(PARTS),-parts $(PARTS))
bench: bench-deps ## measure plugin and agent next to stock CoreDNS, unbound, dnsmasq, knot-resolver, dnsdist, pdns-recursor and a node without a cache: hours (SHORT=1: ten minutes; WITH=unbound, WORKLOADS=W1,W2, PARTS=plugin,memory,query,dnsperf,growth, ROUNDS=9); bin/bench.md, .json, .svg, .png
	@$(BENCHRUN)

bench-check: bench-deps ## bench that fails where a figure is beyond its limit, or surely worse than in integration/bench/result.json
	@$(BENCHRUN) -check

bench-keep: bin/tools/bench ## make the last bench's result the committed one, and draw docs/project/bench.md and README.md from it
	@bin/tools/bench -keep
	@$(GO) test -count=1 -run '^TestFigures$$' ./integration/docs -update
	@.ci/lanes -ran "make bench SHORT=1" # not by bench: the pages have the figures only now

# What an edge is measured beside: stock CoreDNS, and these of Debian.
EDGEPEERS := named:bind9 pdns_server:pdns-server knotd:knot gdnsd:gdnsd dnsperf:dnsperf taskset:util-linux
EDGEMODULES := /usr/share/doc/pdns-backend-bind:pdns-backend-bind /usr/share/doc/knot-module-geoip:knot-module-geoip
bench-edge: deps build tools ## an edge's answers for one second of CPU time beside stock CoreDNS, PowerDNS, Knot and gdnsd: a minute (ROUNDS=5; as root)
	@integration/tools/deps $(EDGEPEERS) $(EDGEMODULES)
	@$(BUILT) NEARDNS_EDGE_BENCH=$(ROUNDS) $(GO) test -tags edgebench -count=1 -timeout 20m -run '^TestBench$$' -v ./integration/edge | grep -E '^\||^ *(---|ok|FAIL|PASS|panic)|_test.go:'

bench-deps: deps build tools bin/tools/bench
	@integration/tools/deps $(PEERS)

# Built, not run by `go run`, which would not pass a SIGTERM on; it is also the load generator that it starts in pods.
bin/tools/bench: FORCE
	@$(BUILD) -buildvcs=false -o $@ ./integration/bench

FAULTS = $(if $(ONLY),-only $(ONLY)) $(if $(ROUNDS),-rounds $(ROUNDS)) $(if $(SHORT),-short) $(if $(CHECK),-check) $(if $(LIST),-list) $(if $(JSON),-json $(JSON)) \
	$(if $(ALONE),-alone) $(if $(BACKEND),-backend $(BACKEND)) $(if $(KERNEL),-kernel $(KERNEL)) $(if $(RENEW),-renew $(RENEW)) $(if $(LIFETIME),-lifetime $(LIFETIME))
faults: deps build tools bin/tools/faults ## count what each fault costs pods, next to a stock CoreDNS, unbound and a node without a cache: half an hour (ROUNDS=5, ONLY=kill,oom, SHORT=1, CHECK=1, LIST=1, BACKEND=iptables, KERNEL=off: without hits in the kernel); bin/faults.json
	@integration/tools/deps unbound:unbound
	@bin/tools/faults $(FAULTS)
	$(PASSED)

BENEFIT = $(if $(ROUNDS),-rounds $(ROUNDS)) $(if $(LOSS),-loss $(LOSS)) $(if $(AWAY),-away $(AWAY))
benefit: deps build tools bin/tools/benefit ## lookups with neardns and without, side by side: time, loss, conntrack entries (ROUNDS=5, LOSS=2, AWAY=1ms); bin/benefit.md, bin/benefit.svg
	@bin/tools/benefit $(BENEFIT)

# Built, not run by `go run`, as faults.
bin/tools/benefit: FORCE
	@$(BUILD) -buildvcs=false -o $@ ./integration/benefit

.PHONY: demo-placement
demo-placement: bin/neardns-controller $(PLANE) ## show on real API servers where caches and kube-dns run, and two clusters' Gateways in one zone: each kubectl step and what comes of it; nodes are objects; five minutes, the first build ten more (RUN=TestSeed)
	@integration/tools/deps $(ZONESERVERS)
	@cd integration/controlplane && NEARDNS_DEMO=1 NEARDNS_COMPAT= $(GO) test -count=1 -timeout 20m -v -run '^($(or $(RUN),TestSeed|TestClusterDNSPlaced|TestPoliciesBIND))$$' . | grep -avE '^(=== |\[controller-runtime\]|Detected at:|	>)'

.PHONY: shared-zones demo-zones
SHARED = $(if $(SHORT),-short) $(if $(ONLY),-only '$(ONLY)') $(if $(SERVER),-server $(SERVER))
shared-zones: bin/neardns-controller bin/tools/sharedzones ## many clusters write one zone on BIND, Knot and PowerDNS; one table and bin/shared-zones.json; a whole run draws fleet/docs/shared-zones-measured.md; two hours, alone (SHORT=1: four minutes, and durations are only printed; ONLY=chaos, SERVER=Knot)
	@integration/tools/deps $(ZONESERVERS)
	@bin/tools/sharedzones -json bin/shared-zones$(if $(SERVER),-$(SERVER)).json $(SHARED)
	$(PASSED)

demo-zones: bin/neardns-controller bin/tools/sharedzones ## show two clusters that share one zone on a real server: join, clash, a Gateway and a DNSPolicy each, leave; a minute (SERVER=BIND)
	@integration/tools/deps $(ZONESERVERS)
	@bin/tools/sharedzones -demo $(if $(SERVER),-server $(SERVER))

# Built, not run by `go run`, as faults.
bin/tools/sharedzones: FORCE
	@$(BUILD) -buildvcs=false -o $@ ./integration/sharedzones

soak: deps build tools bin/tools/faults ## faults at random times, then a look for leaks (DURATION=10m, SEED)
	@bin/tools/faults -soak $(if $(DURATION),-duration $(DURATION)) $(if $(SEED),-seed $(SEED))

# Built, not run by `go run`, which would not pass a SIGTERM on; it is also the load generator that it starts in pods.
bin/tools/faults: FORCE
	@$(BUILD) -buildvcs=false -o $@ ./integration/faults

bench-go: deps build tools bin/tools/benchstat ## run the Go benchmarks (BENCH, BENCHCOUNT, PKGS) and sum them up
	@$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(BENCHCOUNT) -timeout 60m -p 1 $(PKGS) | tee bin/bench.txt
	@bin/tools/benchstat bin/bench.txt

# Built, and not run by go test, whose limit of time and printing at the end do not fit. KEPT is read again: what it has is not tried again.
.PHONY: mutants
KEPT ?= bin/mutants-$(or $(SEED),1).json
mutants: ## change the product in N places (200), drawn by SEED, and run the unit tests of the changed package: which fail? KEPT=the file of results, to go on; LIST=that of another commit; WHOLE=1: survivors again, with kernel tests as root; an hour
	@$(GO) test -c -tags mutants -o bin/tools/mutants ./hack/mutants
	@cd hack/mutants && nice -n 19 $(CURDIR)/bin/tools/mutants -test.run '^TestMutants$$' -seed $(or $(SEED),1) -n $(or $(N),200) -out $(abspath $(KEPT)) $(if $(LIST),-list $(abspath $(LIST))) $(if $(WHOLE),-whole)

LINTED := integration/runtimes integration/kubelet-dns integration/cluster-manifests integration/cluster integration/controlplane
lint: bin/tools/golangci-lint bin/tools/actionlint findings ## check the code's style, the dependency rules, each test's tier, and the ceilings for words and sizes
	@! grep -v ': Message\.' $(FINDINGS)/vet # those are counted by the ceilings
	@$(GO) run ./hack/ceilings $(FINDINGS)/prose $(FINDINGS)/vet
	@bin/tools/actionlint -shellcheck= -pyflakes=
	@bin/tools/golangci-lint run
	@for dir in $(LINTED); do (cd $$dir && $(CURDIR)/bin/tools/golangci-lint run --config $(CURDIR)/.golangci.yml); done

.PHONY: findings ceilings
ceilings: findings ## lower the ceilings of make lint to what is counted now (LIST=Plain.Says: print a rule's findings instead)
	@$(GO) run ./hack/ceilings $(if $(LIST),-list $(LIST),-lower) $(FINDINGS)/prose $(FINDINGS)/vet

FINDINGS := bin/findings
# Only integration/steering has a file that is left out by the tag timing.
findings: bin/tools/vale bin/tools/vet
	@mkdir -p $(FINDINGS)
	@bin/tools/vale --config hack/vale/vale.ini --no-exit --output line --glob '!{bin,dist,**/testdata}/**' . >$(FINDINGS)/prose
	@{ $(GO) vet -tags timing -vettool=$(CURDIR)/bin/tools/vet ./... 2>&1 || true; \
		$(GO) vet -vettool=$(CURDIR)/bin/tools/vet ./integration/steering 2>&1 || true; \
		for dir in $(LINTED); do (cd $$dir && $(GO) vet -vettool=$(CURDIR)/bin/tools/vet ./... 2>&1 || true) | sed "/: Message\./d; /^#\|^go: downloading/!s,^\(\./\)*,$$dir/,"; done; } | \
		{ grep -v -e '^#' -e '^go: downloading' || true; } | LC_ALL=C sort -u >$(FINDINGS)/vet

bin/tools/vet: $(wildcard hack/vet/*.go hack/vet/*/*.go hack/vet/go.mod)
	@echo "building vet"
	@cd hack/vet && $(BUILD) -buildvcs=false -o $(abspath $@) . && $(GO) test -count=1 ./... >/dev/null

fmt: bin/tools/golangci-lint ## format the code
	@bin/tools/golangci-lint fmt

cover: ## write the tests' coverage to cover.out and cover.html
	@$(GO) test -p 2 -coverpkg=./agent/...,./fleet/edge/...,./fleet/zones/...,./install/...,./internal/...,./pkg/...,./plugins/... -coverprofile=cover.out $(PKGS)
	@$(GO) tool cover -html=cover.out -o cover.html
	@$(GO) tool cover -func=cover.out | tail -1

update-golden: ## rewrite the golden files from what the code gives now; read the difference before you commit it
	@cd integration/cluster-manifests && $(GO) test -count=1 ./... -update
	@$(GO) test -count=1 $$(grep -rl --include='*_test.go' --exclude-dir=cluster-manifests 'testutil/golden"' agent install integration internal pkg plugins | xargs -r dirname | sort -u | sed 's,^,./,') -update

bpf: ## compile the kernel's program (internal/offload/bpf/hits.bpf.c) and write its object and types
	@integration/tools/deps $(BPF)
	@BPF2GO_CFLAGS=-I/usr/include/$$(uname -m)-linux-gnu $(GO) generate ./internal/offload/bpf

deps: ## see to the programs that tests and demo call (installs Debian packages as root)
	@integration/tools/deps

tools: $(TEST_TOOLS) ## build the stock CoreDNS, cnitool and the reference plugins into bin/tools/

# Vale reads comments by tree-sitter, which is C.
bin/tools/vale: export CGO_ENABLED := 1
bin/tools/golangci-lint bin/tools/vale: hack/lint/go.mod
	@echo "building $(@F)"
	@cd hack/lint && $(BUILD) -buildvcs=false -o $(abspath $@) $(TOOL_$(@F))
bin/tools/containerd2/%: hack/containerd/go.mod
	@echo "building $*"
	@cd hack/containerd && $(BUILD) -buildvcs=false -tags 'no_btrfs no_devmapper no_zfs' -o $(abspath $@) github.com/containerd/containerd/v2/cmd/$*
bin/tools/%: hack/tools/go.mod hack/tools/coredns/main.go
	@echo "building $*"
	@cd hack/tools && $(BUILD) -buildvcs=false -o $(abspath $@) $(TOOL_$*)

clean: ## remove what was built
	@rm -rf bin cover.out cover.html
