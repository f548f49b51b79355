package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// clone makes a clone of HEAD with the version as tag. A tag of that name on another commit is an error, as are changes that were
// not committed: a release of something else than what its tag names is of no use.
func (r *release) clone(ctx context.Context) error {
	changed, err := command(ctx, ".", nil, "git", "status", "--porcelain")
	if err != nil {
		return err
	}
	if changed != "" {
		return fmt.Errorf("there are changes that are not committed: commit or stash them\n%s", changed)
	}
	head, err := command(ctx, ".", nil, "git", "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	if tagged, err := command(ctx, ".", nil, "git", "rev-parse", "-q", "--verify", r.version+"^{commit}"); err == nil && tagged != head {
		return fmt.Errorf("tag %s is on commit %s, and HEAD is %s: check that one out, or name another version", r.version, tagged, head)
	}
	root, err := command(ctx, ".", nil, "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	r.src = filepath.Join(r.work, "src")
	if _, err := command(ctx, ".", nil, "git", "clone", "-q", "--no-hardlinks", "--no-tags", root, r.src); err != nil {
		return err
	}
	for _, args := range [][]string{{"checkout", "-q", "--detach", head}, {"tag", r.version, head}} {
		if _, err := command(ctx, r.src, nil, "git", args...); err != nil {
			return err
		}
	}
	seconds, err := command(ctx, r.src, nil, "git", "show", "-s", "--format=%ct", "HEAD")
	if err != nil {
		return err
	}
	r.clock, err = strconv.ParseInt(seconds, 10, 64)
	return err
}

// bin is where the programs of an architecture are.
func (r *release) bin(arch string) string { return filepath.Join(r.work, "bin", arch) }

// programs builds the programs for each architecture, and packs each with the licence.
func (r *release) programs(ctx context.Context, out string) error {
	for _, arch := range architectures {
		if err := r.build(ctx, arch); err != nil {
			return err
		}
		name := fmt.Sprintf("neardns-%s-linux-%s", r.version, arch)
		files := map[string]string{name + "/LICENSE": filepath.Join(r.src, "LICENSE"), name + "/CHANGELOG.md": filepath.Join(r.src, "CHANGELOG.md")}
		programs, err := os.ReadDir(r.bin(arch))
		if err != nil {
			return err
		}
		for _, p := range programs {
			files[name+"/"+p.Name()] = filepath.Join(r.bin(arch), p.Name())
		}
		if err := r.pack(filepath.Join(out, name+".tar.gz"), files); err != nil {
			return err
		}
	}
	return nil
}

// build builds the programs of one architecture, once a run.
func (r *release) build(ctx context.Context, arch string) error {
	if _, err := os.Lstat(r.bin(arch)); err == nil {
		return nil
	}
	// GOAMD64 and the like stay as Go has them: an image runs on each machine of its architecture.
	if _, err := command(ctx, r.src, []string{"GOARCH=" + arch, "GOOS=linux", "GOFLAGS="}, "make", "build"); err != nil {
		return err
	}
	if err := r.names(ctx, arch); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(r.bin(arch)), 0o755); err != nil {
		return err
	}
	return os.Rename(filepath.Join(r.src, "bin"), r.bin(arch))
}

// names fails unless each program names the version: as build information, and where it runs here, by its output.
func (r *release) names(ctx context.Context, arch string) error {
	programs, err := filepath.Glob(filepath.Join(r.src, "bin", "*"))
	if err != nil || len(programs) == 0 {
		return errors.Join(errors.New("make build made nothing"), err)
	}
	for _, program := range programs {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return err
		}
		if info.Main.Version != r.version {
			return fmt.Errorf("the build information of %s names version %s", filepath.Base(program), info.Main.Version)
		}
		if arch != runtime.GOARCH {
			continue
		}
		cmd := exec.CommandContext(ctx, program, "--version")
		said, err := cmd.CombinedOutput()
		if err == nil && !strings.Contains(string(said), r.version) {
			err = errors.New("no version")
		}
		if err != nil {
			return fmt.Errorf("%s --version: %w: %s", filepath.Base(program), err, said)
		}
	}
	return nil
}

// manifests packs install/ and fleet/install/ with the version in place of the tag that stands there, and the chart of each.
func (r *release) manifests(_ context.Context, out string) error {
	manifests := map[string]string{}
	for chart, folder := range map[string]string{"neardns": "install", "neardns-fleet": "fleet/install"} {
		inChart, err := r.tag(folder, chart, manifests)
		if err != nil {
			return err
		}
		// As `helm package` names it.
		if err := r.pack(filepath.Join(out, chart+"-"+strings.TrimPrefix(r.version, "v")+".tgz"), inChart); err != nil {
			return err
		}
	}
	return r.pack(filepath.Join(out, "neardns-"+r.version+"-manifests.tar.gz"), manifests)
}

// tag writes the version into the files of a folder. It adds them to manifests by their names in the archive, and returns those of its
// chart.
func (r *release) tag(folder, name string, manifests map[string]string) (chart map[string]string, err error) {
	chart = map[string]string{}
	top := filepath.Join(r.src, folder)
	err = filepath.WalkDir(top, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.WriteFile(path, tagged(entry.Name(), text, r.version), 0o644); err != nil {
			return err
		}
		under, err := filepath.Rel(top, path)
		if inChart, ok := strings.CutPrefix(under, "chart/"); ok {
			chart[name+"/"+inChart] = path
		} else {
			manifests["neardns-"+r.version+"/"+folder+"/"+under] = path
		}
		return err
	})
	return chart, err
}

// tagged is a manifest or a chart's description that names the version where that of the repository has dev. A chart's version is a
// semantic version, which has no v.
func tagged(name string, text []byte, version string) []byte {
	var words []string
	switch name {
	case "kustomization.yaml":
		words = []string{"newTag: dev}", "newTag: " + version + "}"}
	case "neardns.yaml":
		words = []string{"/neardns-agent:dev\n", "/neardns-agent:" + version + "\n", "/neardns-plugin:dev\n", "/neardns-plugin:" + version + "\n"}
	case "Chart.yaml":
		words = []string{"version: 0.0.0-dev\n", "version: " + strings.TrimPrefix(version, "v") + "\n", "appVersion: dev\n", "appVersion: " + version + "\n"}
	}
	return []byte(strings.NewReplacer(words...).Replace(string(text)))
}
