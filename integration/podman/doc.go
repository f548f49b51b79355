// Package podman holds the tests of the container images (`make test-images`): they are built with podman in a store of their
// own, without a registry, and run as a node runs them, with the capabilities that install/base names and no other.
package podman
