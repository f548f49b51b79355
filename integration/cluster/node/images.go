package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/neardns/neardns/integration/image"
)

// images are all that pods are made of.
func (n *Node) images(ctx context.Context) ([]image.Image, error) {
	bin := func(name string) string { return filepath.Join(n.Bin, name) }
	products, err := n.Products(ctx, n.Own())
	return append([]image.Image{
		{Name: PodImage, Files: map[string]string{"podimage": bin("tools/podimage")}, Entrypoint: []string{"/podimage"}, Cmd: []string{"pause"}},
		{Name: coreDNSImage, Files: map[string]string{"coredns": bin("tools/coredns")}, Entrypoint: []string{"/coredns"}},
	}, products...), err
}

// Products are a build's two images as its Dockerfiles make them.
func (n *Node) Products(ctx context.Context, b Build) ([]image.Image, error) {
	stage := "agent"
	if n.Slim {
		stage = "slim"
	}
	var out []image.Image
	for _, d := range []struct{ file, stage, name string }{{"Dockerfile.plugin", "", "neardns-plugin"}, {"Dockerfile.agent", stage, "neardns-agent"}} {
		text, err := os.ReadFile(filepath.Join(b.Root, d.file))
		if err != nil {
			return nil, err
		}
		i, err := fromDockerfile(ctx, string(text), d.stage, b.Root)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.file, err)
		}
		i.Name = "docker.io/neardns/" + d.name + ":" + b.Tag
		out = append(out, i)
	}
	return out, nil
}

// outFolder is where a stage leaves what another one copies.
const outFolder = "/out"

// fromDockerfile reads a stage that begins with nothing; root is the folder that it copies from. An instruction that it does
// not know is an error: the image would be another one. What the stage copies of another's outFolder is made by that one's
// commands on this machine, which is a Debian, too.
func fromDockerfile(ctx context.Context, text, stage, root string) (image.Image, error) {
	i := image.Image{Files: map[string]string{}}
	found := false
	for _, f := range instructions(text, func(from []string) bool {
		return len(from) > 1 && from[1] == "scratch" && (stage == "" && len(from) == 2 || len(from) == 4 && from[3] == stage)
	}) {
		switch {
		case f[0] == "FROM":
			found = true
		case f[0] == "ENV" && len(f) == 2:
			i.Env = append(i.Env, f[1])
		case f[0] == "COPY" && len(f) == 4 && strings.HasPrefix(f[1], "--from=") && f[2] == outFolder+"/" && f[3] == "/":
			var err error
			if i.Contents, err = made(ctx, text, strings.TrimPrefix(f[1], "--from="), root); err != nil {
				return i, err
			}
		case f[0] == "COPY" && len(f) > 3 && strings.HasSuffix(f[len(f)-1], "/") && strings.HasPrefix(f[1], "--from="):
			folder := contextOf(text, strings.TrimPrefix(f[1], "--from="))
			for _, from := range f[2 : len(f)-1] {
				under, ok := strings.CutPrefix(from, folder+"/")
				if folder == "" || !ok {
					return i, fmt.Errorf("cannot follow %q", strings.Join(f, " "))
				}
				i.Files[strings.TrimPrefix(f[len(f)-1], "/")+filepath.Base(from)] = filepath.Join(root, under)
			}
		case f[0] == "COPY" && len(f) > 2 && strings.HasSuffix(f[len(f)-1], "/") && !strings.HasPrefix(f[1], "-"):
			for _, from := range f[1 : len(f)-1] {
				i.Files[strings.TrimPrefix(f[len(f)-1], "/")+filepath.Base(from)] = filepath.Join(root, from)
			}
		case f[0] == "ENTRYPOINT":
			words := strings.Join(f[1:], " ")
			if err := json.Unmarshal([]byte(words), &i.Entrypoint); err != nil {
				return i, fmt.Errorf("read %q: %w", words, err)
			}
		default:
			return i, fmt.Errorf("cannot follow %q", strings.Join(f, " "))
		}
	}
	if !found || len(i.Files) == 0 || len(i.Entrypoint) == 0 {
		return i, fmt.Errorf("no stage %q from scratch with files and an entry point", stage)
	}
	return i, nil
}

// contextOf is the folder in which a stage has all that there is to copy from: its programs are those that were built here. Empty: none.
func contextOf(text, stage string) string {
	for _, f := range instructions(text, func(from []string) bool { return len(from) > 2 && from[len(from)-1] == stage }) {
		if f[0] == "COPY" && len(f) == 3 && f[1] == "." {
			return f[2]
		}
	}
	return ""
}

// instructions are those of the stages whose FROM is wanted, in words. Lines that go on are one.
func instructions(text string, wanted func(from []string) bool) [][]string {
	var out [][]string
	inside := false
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if f[0] == "FROM" {
			inside = wanted(f)
		}
		if inside {
			out = append(out, f)
		}
	}
	return out
}

// made are the files that a stage's commands leave in its outFolder, by their paths there. A link is the file that it leads to,
// which may be one of the repository's own programs.
func made(ctx context.Context, text, stage, root string) (map[string][]byte, error) {
	dir, err := os.MkdirTemp("", "neardns-stage")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "out")
	ran := false
	for _, f := range instructions(text, func(from []string) bool { return len(from) == 4 && from[3] == stage }) {
		if f[0] != "RUN" {
			continue
		}
		ran = true
		script := strings.ReplaceAll(strings.Join(f[1:], " "), outFolder, out)
		if text, err := exec.CommandContext(ctx, "sh", "-c", script).CombinedOutput(); err != nil { //nolint:gosec // the repository's own
			return nil, fmt.Errorf("stage %s: %w\n%s", stage, err, text)
		}
	}
	if !ran {
		return nil, fmt.Errorf("no stage %q that runs anything", stage)
	}
	files := map[string][]byte{}
	err = filepath.WalkDir(out, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		from := path
		if to, err := os.Readlink(path); err == nil && strings.HasPrefix(to, "/bin/") {
			from = filepath.Join(root, to)
		}
		name, err := filepath.Rel(out, path)
		if err == nil {
			files[name], err = os.ReadFile(from)
		}
		return err
	})
	return files, err
}
