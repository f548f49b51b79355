package bpf

// The object is committed, so that building the agent needs no clang. `make bpf` regenerates it, and TestObject compares.
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -tags linux -no-global-types -target bpfel -type slot -type small -type control -type bucket -type series -type link -type served_address -type copied object hits.bpf.c -- -O2 -g -Wall -Werror -mcpu=v3
