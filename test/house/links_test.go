package house

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// TestLinks holds every relative link of a page in this tree to a file that
// exists, and to a heading in it if the link names one. Paths in backquotes must
// exist too.
func TestLinks(t *testing.T) {
	root := filepath.Join("..", "..")
	out, err := exec.Command("git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "*.md").Output()
	if err != nil {
		t.Fatalf("list the pages: %v", err)
	}
	looked := 0
	for _, page := range strings.Fields(string(out)) {
		text, err := os.ReadFile(filepath.Join(root, page))
		if os.IsNotExist(err) {
			continue // removed, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range links(string(text)) {
			looked++
			if why := broken(filepath.Join(root, page), link); why != "" {
				t.Errorf("%s links to %s: %s", page, link, why)
			}
		}
		for _, p := range quotedPaths(strings.Join(prose(string(text)), "\n")) {
			looked++
			if _, err := os.Stat(filepath.Join(root, p)); err != nil {
				t.Errorf("%s names `%s`: there is no such file", page, p)
			}
		}
	}
	if looked < 50 {
		t.Errorf("only %d links were looked at", looked)
	}
}

// TestBrokenLinks has the links that TestLinks must refuse.
func TestBrokenLinks(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	text := "# A page: `x` and more\n\n## Twice\n\n## Twice\n\n```\n## Not a heading\n[no](link.md)\n```\n[a](#twice-1) [b](page.md#a-page-x-and-more) [c](#not-a-heading) [d](other.md) `[e](#code)` [f](https://example.com/#x)\n"
	if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, link := range links(text) {
		got[link] = broken(page, link) == ""
	}
	want := map[string]bool{"#twice-1": true, "page.md#a-page-x-and-more": true, "#not-a-heading": false, "other.md": false}
	if len(got) != len(want) {
		t.Errorf("links found: %v, want %v", got, want)
	}
	for link, ok := range want {
		if has, found := got[link]; !found || has != ok {
			t.Errorf("%s: good %v (found %v), want %v", link, has, found, ok)
		}
	}
}

var (
	tops        = []string{"client", "cmd", "docs", "internal", "packaging", "script", "test"}
	pathForm    = regexp.MustCompile(`^[A-Za-z0-9_./-]+$`)
	linkForm    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	codeForm    = regexp.MustCompile("`[^`]*`")
	headingForm = regexp.MustCompile(`^#{1,6} +(.*?) *#*$`)
)

// links returns the links of a page that lead somewhere in this tree.
func links(text string) []string {
	var found []string
	for _, line := range prose(text) {
		for _, m := range linkForm.FindAllStringSubmatch(codeForm.ReplaceAllString(line, ""), -1) {
			if u, err := url.Parse(m[1]); err != nil || u.Scheme == "" {
				found = append(found, m[1])
			}
		}
	}
	return found
}

// quotedPaths returns the files and directories of this tree that a page names
// in backquotes.
func quotedPaths(page string) []string {
	var paths []string
	for i, s := range strings.Split(page, "`") {
		top, _, below := strings.Cut(s, "/")
		if i%2 == 1 && below && slices.Contains(tops, top) && pathForm.MatchString(s) {
			paths = append(paths, s)
		}
	}
	return paths
}

// prose returns the lines of a page that are not code.
func prose(text string) []string {
	var lines []string
	code := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
		} else if !code {
			lines = append(lines, line)
		}
	}
	return lines
}

// broken says what is wrong with a link on a page; "" if nothing is.
func broken(page, link string) string {
	u, err := url.Parse(link)
	if err != nil {
		return err.Error()
	}
	target := page
	if u.Path != "" {
		target = filepath.Join(filepath.Dir(page), u.Path)
	}
	if _, err := os.Stat(target); err != nil {
		return "there is no such file"
	}
	if u.Fragment == "" {
		return ""
	}
	text, err := os.ReadFile(target)
	if err != nil {
		return err.Error()
	}
	used := map[string]int{}
	for _, line := range prose(string(text)) {
		m := headingForm.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		name := anchor(m[1])
		if used[name]++; used[name] > 1 {
			name += "-" + string(rune('0'+used[name]-1))
		}
		if name == u.Fragment {
			return ""
		}
	}
	return "that page has no such heading"
}

// anchor returns the name that a heading gets, as GitHub makes it.
func anchor(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
			b.WriteRune(r)
		case r == ' ':
			b.WriteRune('-')
		}
	}
	return b.String()
}
