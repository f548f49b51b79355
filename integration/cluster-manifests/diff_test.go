package clustermanifests

import "strings"

// context is how many lines a difference shows around itself.
const context = 2

// diff shows what is to be done to the lines of a to have those of b, with the lines around; empty where they are equal. Both are
// a few hundred lines, so the table of their longest common lines is small.
func diff(a, b string) string {
	if a == b {
		return ""
	}
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	common := make([][]int, len(x)+1)
	for i := range common {
		common[i] = make([]int, len(y)+1)
	}
	for i := len(x) - 1; i >= 0; i-- {
		for j := len(y) - 1; j >= 0; j-- {
			if x[i] == y[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var lines []string
	for i, j := 0, 0; i < len(x) || j < len(y); {
		switch {
		case i < len(x) && j < len(y) && x[i] == y[j]:
			lines = append(lines, "  "+x[i])
			i, j = i+1, j+1
		case j == len(y) || i < len(x) && common[i+1][j] >= common[i][j+1]:
			lines = append(lines, "- "+x[i])
			i++
		default:
			lines = append(lines, "+ "+y[j])
			j++
		}
	}
	return around(lines)
}

// around keeps the changed lines and those near them.
func around(lines []string) string {
	changed := func(i int) bool { return i >= 0 && i < len(lines) && lines[i][0] != ' ' }
	var out strings.Builder
	skipped := false
	for i, line := range lines {
		near := false
		for d := -context; d <= context; d++ {
			near = near || changed(i+d)
		}
		if !near {
			skipped = true
			continue
		}
		if skipped {
			out.WriteString("...\n")
		}
		skipped = false
		out.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return out.String()
}
