package e2b

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestQuota: Novita's clients read what a key may take and takes.
func TestQuota(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.MaxTimeout = 36 * time.Hour })
	running := w.create(`{"templateID":"base"}`)
	paused := w.create(`{"templateID":"base"}`)
	w.do("POST", "/sandboxes/"+paused+"/pause", "").Is(http.StatusNoContent)
	q := w.do("GET", "/sandboxes/quota", "").Is(http.StatusOK).Object()
	sb, _ := w.Fake.Get(t.Context(), running)
	use := w.Fake.KeyUse(sb.Config.Key)
	usage := q["usage"].(map[string]any)
	for name, want := range map[string]int{"concurrentInstances": use.Running, "concurrentVcpu": sb.Config.Limits.VCPUs(), "concurrentRamMb": use.MemoryMiB} {
		if got := usage[name]; got != float64(want) || want == 0 {
			t.Errorf("usage %s is %v, want %d", name, got, want)
		}
	}
	if got := q["limit"].(map[string]any)["maxLengthHours"]; got != 36.0 {
		t.Errorf("the longest timeout is %v hours, want 36", got)
	}
}

// TestEventPages: Novita's clients ask for events in pages of their own.
func TestEventPages(t *testing.T) {
	w := newWorld(t)
	id := w.lives()
	other := w.create(`{"templateID": "base"}`)
	start := epoch.Unix()
	for query, want := range map[string]string{
		"":                                "6 false create kill update resume pause create",
		"?orderAsc=true&limit=2":          "6 true create pause",
		"?orderAsc=True&limit=2&offset=4": "6 false kill create",
		"?sandboxID=" + other:             "1 false create",
		"?sandboxID=" + id + "&events=pause,kill": "2 false kill pause",
		"?state=failed":                                   "0 false",
		"?state=success&events=create":                    "2 false create create",
		"?templateID=base&events=pause":                   "1 false pause",
		"?templateID=nonesuch":                            "0 false",
		"?endTime=" + strconv.FormatInt(start, 10):        "1 false create",
		"?startTime=" + strconv.FormatInt(start+1, 10):    "5 false create kill update resume pause",
		"?startTime=" + strconv.FormatInt(start+3600, 10): "0 false",
		"?offset=6": "6 false",
	} {
		p := w.do("GET", "/sandboxes/events"+query, "").Is(http.StatusOK).Object()
		got := []string{strconv.FormatInt(int64(p["total"].(float64)), 10), map[bool]string{true: "true", false: "false"}[p["hasMore"].(bool)]}
		for _, item := range p["items"].([]any) {
			got = append(got, item.(map[string]any)["eventName"].(string))
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s: %s, want %s", query, text, want)
		}
	}
	for _, query := range []string{"?limit=0", "?limit=x", "?startTime=x", "?sandboxID=..", "?orderAsc=1"} {
		w.do("GET", "/sandboxes/events"+query, "").fails(http.StatusBadRequest, "invalid_request", "")
	}
	item := w.do("GET", "/sandboxes/events?events=pause", "").Object()["items"].([]any)[0].(map[string]any)
	for name, value := range map[string]any{"sandboxID": id, "templateName": "base", "state": "success", "statusCode": 200.0, "errorMsg": ""} {
		if item[name] != value {
			t.Errorf("%s is %v, want %v", name, item[name], value)
		}
	}
}
