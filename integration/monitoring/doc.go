// Package monitoring holds the alert rules, the dashboard and the scrape configurations to what a running agent exports: a real
// Prometheus scrapes it on a node made of namespaces.
package monitoring
