package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/integration/image"
	"github.com/neardns/neardns/pkg/testutil"
)

const dockerfile = `# a comment
ARG BASE=debian

FROM ${BASE} AS other
RUN something --with "FROM"

FROM scratch AS slim
ENV PATH=/bin
COPY bin/a bin/b /bin/
ENTRYPOINT ["/bin/a", "--x"]

FROM --platform=x golang AS builder
COPY . /src
RUN make

FROM scratch AS built
COPY --from=builder /src/bin/a /src/bin/b /bin/
ENTRYPOINT ["/bin/a"]

FROM scratch AS full
COPY --from=other /out/ /
COPY bin/a /bin/
ENTRYPOINT ["/bin/a"]

FROM debian AS maker
# Made here.
RUN mkdir -p /out/lib /out/sbin; \
    echo text >/out/lib/text
RUN ln -s ../lib/text /out/sbin/near; ln -s /bin/a /out/sbin/own

FROM scratch AS copies
COPY --from=maker /out/ /
COPY bin/a /bin/
ENTRYPOINT ["/bin/a"]
`

func TestFromDockerfile(t *testing.T) {
	root := t.TempDir()
	a, b := filepath.Join(root, "bin/a"), filepath.Join(root, "bin/b")
	testutil.Must(t, errors.Join(os.Mkdir(filepath.Dir(a), 0o755), os.WriteFile(a, []byte("a"), 0o644)))
	for stage, want := range map[string]image.Image{
		"slim":  {Files: map[string]string{"bin/a": a, "bin/b": b}, Env: []string{"PATH=/bin"}, Entrypoint: []string{"/bin/a", "--x"}},
		"built": {Files: map[string]string{"bin/a": a, "bin/b": b}, Entrypoint: []string{"/bin/a"}},
		"copies": {Files: map[string]string{"bin/a": a}, Entrypoint: []string{"/bin/a"},
			Contents: map[string][]byte{"lib/text": []byte("text\n"), "sbin/near": []byte("text\n"), "sbin/own": []byte("a")}},
	} {
		got, err := fromDockerfile(t.Context(), dockerfile, stage, root)
		testutil.Must(t, err)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", stage, diff)
		}
	}
}

func TestFromDockerfileRefuses(t *testing.T) {
	for name, c := range map[string]struct{ text, stage string }{
		"a stage's commands that fail": {dockerfile, "full"},
		"no stage to copy of":          {"FROM scratch\nCOPY --from=x /out/ /\nENTRYPOINT [\"/bin/a\"]\n", ""},
		"another folder of another":    {strings.ReplaceAll(dockerfile, "/out/ /", "/usr/ /"), "copies"},
		"another place of a builder":   {strings.ReplaceAll(dockerfile, "/src/bin/b", "/usr/b"), "built"},
		"no such stage":                {dockerfile, "none"},
		"one with a base":              {dockerfile, "other"},
		"nothing in it":                {"FROM scratch\n", ""},
		"unknown instruction":          {"FROM scratch\nUSER 1\nCOPY a /bin/\nENTRYPOINT [\"/bin/a\"]\n", ""},
		"entry point for a shell":      {"FROM scratch\nCOPY a /bin/\nENTRYPOINT /bin/a\n", ""},
	} {
		if i, err := fromDockerfile(t.Context(), c.text, c.stage, "/"); err == nil {
			t.Errorf("%s: makes %+v", name, i)
		}
	}
}

// The products' own are read as they are; the agent's has both iptables, unless it is the slim one.
func TestProducts(t *testing.T) {
	for _, slim := range []bool{false, true} {
		n := &Node{Options: Options{Bin: "../../../bin", Slim: slim}}
		images, err := n.Products(t.Context(), Build{"../../..", "x"})
		if err != nil || len(images) != 2 {
			t.Fatalf("%v, %+v", err, images)
		}
		for _, i := range images {
			if i.Files["bin/neardns-install"] == "" {
				t.Errorf("%s has no installer: %v", i.Name, i.Files)
			}
		}
		has := len(images[1].Contents["usr/sbin/iptables-legacy-restore"]) > 0 && len(images[1].Contents["usr/sbin/ip6tables-nft"]) > 0 &&
			len(images[1].Contents["usr/sbin/iptables"]) > 0
		if has == slim || slim && len(images[1].Contents) > 0 {
			t.Errorf("slim %v: iptables is there: %v", slim, has)
		}
	}
}
