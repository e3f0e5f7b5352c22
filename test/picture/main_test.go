package main

import (
	"encoding/xml"
	"strings"
	"testing"
	"time"
)

// TestDraw draws lines that would break the picture: with marks of XML, with the name
// of a file on this machine, and longer than there is room for.
func TestDraw(t *testing.T) {
	lines, err := record([]string{"sh", "-c", `echo '  <fell> & "asleep"'; sleep 0.2; echo 'server ready; log /tmp/x.log'; echo ` + strings.Repeat("é", 200)})
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) != 3 || lines[1].at-lines[0].at < 150*time.Millisecond {
		t.Fatalf("recorded %+v", lines)
	}
	picture := draw("demo", lines)
	var svg struct {
		Text []struct {
			Class string `xml:"class,attr"`
			Style string `xml:"style,attr"`
			Text  string `xml:",chardata"`
		} `xml:"text"`
	}
	if err := xml.Unmarshal([]byte(picture), &svg); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, x := range svg.Text {
		got = append(got, x.Class+"|"+x.Text)
	}
	want := []string{"typed|$ demo", "line asleep|  <fell> & \"asleep\"", "line |server ready", "line |" + strings.Repeat("é", columns-1) + "…"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("drew %q, want %q", got, want)
	}
	if svg.Text[0].Style != "animation-delay: 0ms" || svg.Text[2].Style == svg.Text[1].Style {
		t.Errorf("they appear at %q and %q", svg.Text[1].Style, svg.Text[2].Style)
	}
	if strings.Contains(picture, "x.log") {
		t.Error("it shows a file of this machine")
	}
	if _, err := record([]string{"false"}); err == nil {
		t.Error("a command that fails is drawn")
	}
}
