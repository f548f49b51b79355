package callers

import (
	"testing"

	"github.com/neardns/neardns/integration/programs"
)

// made are the products, and the reference tools.
var made = programs.Of("neardns", "neardns-agent", "neardns-install", "cnitool", "ptp", "bridge", "macvlan", "host-local")

func TestMain(m *testing.M) { made.Main(m) }
