package containerd

import (
	"regexp"
	"strings"
	"testing"
)

// Whether containerd takes the text shows where it is run; here is that every setting got in.
func TestConfig(t *testing.T) {
	c := Config{Root: "/r", State: "/s", Socket: "/c.sock", Runc: "/runc", CNIBin: "/cb", CNIConf: "/cc", Sandbox: "x.test/y:1", Registries: "/reg"}
	for _, r := range Releases("bin") {
		text := r.Config(c)
		for _, value := range []string{c.Root, c.State, c.Socket, c.Runc, c.CNIBin, c.CNIConf, c.Sandbox, c.Registries} {
			if strings.Count(text, `"`+value+`"`) != 1 {
				t.Errorf("%s: not once %q in\n%s", r.Name, value, text)
			}
		}
		if strings.Contains(text, "nri") != (r.major == 2) || strings.Contains(text, "nri.sock") {
			t.Errorf("%s: NRI is not off:\n%s", r.Name, text)
		}
		c := c
		if c.NRI = "/n"; strings.Contains(r.Config(c), `"/n/nri.sock"`) != (r.major == 2) {
			t.Errorf("%s: NRI:\n%s", r.Name, r.Config(c))
		}
		if left := regexp.MustCompile(`<\w+>`).FindString(text); left != "" {
			t.Errorf("%s: %s is left in the text", r.Name, left)
		}
	}
}

func TestFind(t *testing.T) {
	r, err := Find("bin", "containerd2")
	if err != nil || r.Program("ctr") != "bin/tools/containerd2/ctr" {
		t.Errorf("%v, %s", err, r.Program("ctr"))
	}
	r, err = Find("bin", "containerd16")
	if err != nil || r.Program("ctr") != "ctr" {
		t.Errorf("%v, %s", err, r.Program("ctr"))
	}
	if _, err = Find("bin", "rkt"); err == nil || !strings.Contains(err.Error(), "containerd16, containerd2") {
		t.Errorf("%v does not say what there is", err)
	}
	if _, err := (Release{Name: "none", Dir: t.TempDir()}).Version(t.Context()); err == nil {
		t.Error("there is a version of what is not there")
	}
}
