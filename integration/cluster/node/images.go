package node

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/neardns/neardns/integration/image"
)

// images are all that pods are made of.
func (n *Node) images() ([]image.Image, error) {
	bin := func(name string) string { return filepath.Join(n.Bin, name) }
	products, err := n.Products("dev")
	return append([]image.Image{
		{Name: PodImage, Files: map[string]string{"podimage": bin("tools/podimage")}, Entrypoint: []string{"/podimage"}, Cmd: []string{"pause"}},
		{Name: coreDNSImage, Files: map[string]string{"coredns": bin("tools/coredns")}, Entrypoint: []string{"/coredns"}},
	}, products...), err
}

// Products are the products' two images as their Dockerfiles make them. Of the agent's it is the slim one, which needs no base.
func (n *Node) Products(tag string) ([]image.Image, error) {
	root := filepath.Dir(n.Bin)
	var out []image.Image
	for _, d := range []struct{ file, stage, name string }{{"Dockerfile.plugin", "", "neardns-plugin"}, {"Dockerfile.agent", "slim", "neardns-agent"}} {
		text, err := os.ReadFile(filepath.Join(root, d.file))
		if err != nil {
			return nil, err
		}
		i, err := fromDockerfile(string(text), d.stage, root)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.file, err)
		}
		i.Name = "docker.io/neardns/" + d.name + ":" + tag
		out = append(out, i)
	}
	return out, nil
}

// fromDockerfile reads a stage that begins with nothing; root is the folder that it copies from. An instruction that it does
// not know is an error: the image would be another one.
func fromDockerfile(text, stage, root string) (image.Image, error) {
	i := image.Image{Files: map[string]string{}}
	inside, found := false, false
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || strings.HasPrefix(f[0], "#"):
		case f[0] == "FROM":
			inside = len(f) > 1 && f[1] == "scratch" && (stage == "" && len(f) == 2 || len(f) == 4 && f[3] == stage)
			found = found || inside
		case !inside:
		case f[0] == "ENV" && len(f) == 2:
			i.Env = append(i.Env, f[1])
		case f[0] == "COPY" && len(f) > 2 && strings.HasSuffix(f[len(f)-1], "/") && !strings.HasPrefix(f[1], "-"):
			for _, from := range f[1 : len(f)-1] {
				i.Files[strings.TrimPrefix(f[len(f)-1], "/")+filepath.Base(from)] = filepath.Join(root, from)
			}
		case f[0] == "ENTRYPOINT":
			if err := json.Unmarshal([]byte(strings.TrimSpace(strings.TrimPrefix(line, f[0]))), &i.Entrypoint); err != nil {
				return i, fmt.Errorf("read %q: %w", strings.TrimSpace(line), err)
			}
		default:
			return i, fmt.Errorf("cannot follow %q", strings.TrimSpace(line))
		}
	}
	if !found || len(i.Files) == 0 || len(i.Entrypoint) == 0 {
		return i, fmt.Errorf("no stage %q from scratch with files and an entry point", stage)
	}
	return i, nil
}
