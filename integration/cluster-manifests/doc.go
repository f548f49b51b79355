// Package clustermanifests renders the manifests in install/ as kubectl does and reads the result as an API server does. It has a
// module of its own, so that kustomize stays out of the products' dependencies.
package clustermanifests
