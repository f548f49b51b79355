package steering

import (
	"testing"

	"github.com/neardns/neardns/integration/programs"
)

// made are the products, and the reference plugins.
var made = programs.Of("neardns", "neardns-agent", "neardns-install", "ptp", "bridge", "host-local", "coredns")

func TestMain(m *testing.M) { made.Main(m) }
