// Package access holds what each container of install/ may read and write of a node to docs/reference/node-access.md, by running
// as it: with the manifest's mounts over a node's files that the test made, its user and its capabilities, it tries to open every file that
// it finds.
//
// It must never touch the machine's own files, and needs no image.
//
// Failure policy: what a container can read that the page does not say is a failure, and so is the contrary.
package access
