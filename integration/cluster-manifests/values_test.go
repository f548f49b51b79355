package clustermanifests

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

var valueLine = regexp.MustCompile(`^( *)([A-Za-z]+):(.*?)(?:\s+# (.*))?$`)

// valuesTable draws the table of a chart's values from values.yaml: a comment at the end of a line describes that value, one above it the
// value or the group that follows.
func valuesTable(t *testing.T, chart string) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("| value | default | meaning |\n| --- | --- | --- |\n")
	var above, group string
	var path []string
	for line := range strings.Lines(readFile(t, chart+"/values.yaml")) {
		line = strings.TrimRight(line, "\n")
		if comment, ok := strings.CutPrefix(line, "# "); ok {
			above = strings.TrimSpace(above + " " + comment)
			continue
		}
		m := valueLine.FindStringSubmatch(line)
		if m == nil {
			if line != "" && line != "#" {
				t.Fatalf("%s/values.yaml: the table cannot read the line %q", chart, line)
			}
			above, group = "", "" // a comment that stands alone is of the file
			continue
		}
		depth := len(m[1]) / 2
		path = append(path[:min(depth, len(path))], m[2])
		if depth == 0 {
			group, above = above, ""
		}
		value, meaning := strings.TrimSpace(m[3]), m[4]
		if value == "" {
			continue
		}
		if meaning == "" {
			meaning = group
		}
		if meaning == "" {
			t.Errorf("%s/values.yaml: nothing describes %s", chart, strings.Join(path, "."))
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", strings.Join(path, "."), value, strings.ReplaceAll(meaning, "|", `\|`))
	}
	return b.String()
}

// Each chart's page has each of its values.
func TestValuesTable(t *testing.T) {
	const head = "# Chart values\n\nDrawn from the chart's values.yaml by make update-golden. An unknown value is an error.\n\n"
	for page, chart := range map[string]string{"docs/reference/chart-values.md": nodeChart, "fleet/docs/chart-values.md": fleetChart} {
		golden(t, "../../"+page, head+valuesTable(t, chart))
	}
}
