package node

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/integration/image"
)

const dockerfile = `# a comment
ARG BASE=debian

FROM ${BASE} AS other
RUN something --with "FROM"

FROM scratch AS slim
ENV PATH=/bin
COPY bin/a bin/b /bin/
ENTRYPOINT ["/bin/a", "--x"]

FROM scratch AS full
COPY --from=other /out/ /
`

func TestFromDockerfile(t *testing.T) {
	got, err := fromDockerfile(dockerfile, "slim", "/src")
	if err != nil {
		t.Fatal(err)
	}
	want := image.Image{Files: map[string]string{"bin/a": "/src/bin/a", "bin/b": "/src/bin/b"}, Env: []string{"PATH=/bin"}, Entrypoint: []string{"/bin/a", "--x"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestFromDockerfileRefuses(t *testing.T) {
	for name, c := range map[string]struct{ text, stage string }{
		"stage that copies of another": {dockerfile, "full"},
		"no such stage":                {dockerfile, "none"},
		"one with a base":              {dockerfile, "other"},
		"nothing in it":                {"FROM scratch\n", ""},
		"unknown instruction":          {"FROM scratch\nUSER 1\nCOPY a /bin/\nENTRYPOINT [\"/bin/a\"]\n", ""},
		"entry point for a shell":      {"FROM scratch\nCOPY a /bin/\nENTRYPOINT /bin/a\n", ""},
	} {
		if i, err := fromDockerfile(c.text, c.stage, "/"); err == nil {
			t.Errorf("%s: makes %+v", name, i)
		}
	}
}

// The products' own are read as they are.
func TestProducts(t *testing.T) {
	n := &Node{Options: Options{Bin: "../../../bin"}}
	images, err := n.Products("x")
	if err != nil || len(images) != 2 {
		t.Fatalf("%v, %+v", err, images)
	}
	for _, i := range images {
		if i.Files["bin/neardns-install"] == "" {
			t.Errorf("%s has no installer: %v", i.Name, i.Files)
		}
	}
}
