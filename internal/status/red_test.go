package status_test

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/status"
	"github.com/weirlake/weir/internal/status/statustest"
)

// pageOf is the page of a board, as a browser gets it.
func pageOf(t *testing.T, b *status.Board) string {
	t.Helper()
	t.Cleanup(b.Close)
	s, err := status.Serve(b, status.ServeOptions{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	res, err := http.Get(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	html, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%d, %v", res.StatusCode, err)
	}
	return string(html)
}

var (
	adviceLink = regexp.MustCompile(`href="#advice-([a-z-]+)"`)
	adviceID   = regexp.MustCompile(`<details class="card fold" id="advice-([a-z-]+)">`)
)

// advised are the codes for which the page says what to do, and those that it
// links to.
func advised(html string) (said, linked map[string]bool) {
	said, linked = map[string]bool{}, map[string]bool{}
	for _, m := range adviceID.FindAllStringSubmatch(html, -1) {
		said[m[1]] = true
	}
	for _, m := range adviceLink.FindAllStringSubmatch(html, -1) {
		linked[m[1]] = true
	}
	delete(linked, "title") // the section itself
	return said, linked
}

func TestEveryRedStateSaysWhatToDo(t *testing.T) {
	said, linked := advised(pageOf(t, statustest.Red(clock.System{})))
	for code := range linked {
		if !said[code] {
			t.Errorf("a link leads to advice on %s, and there is none", code)
		}
	}
	for _, code := range []string{
		status.CodeRetrying, status.CodeCheck, status.CodeJob, status.CodeModel, status.CodeModelTest, status.CodeCare,
		status.CodeProofViolated, "alert", "late", "dead-letters",
	} {
		if !linked[code] {
			t.Errorf("the page does not link to %s", code)
		}
	}
	for _, code := range []string{status.CodeStarting, status.CodeStalled, status.CodeUnreachable, status.CodeFailed, status.CodeProofInconclusive} {
		if !said[code] {
			t.Errorf("nothing is said about %s", code)
		}
	}
}

func TestAFailureOfEachClassHasAdviceOfItsOwn(t *testing.T) {
	for class := failure.Runtime; class < failure.Inconclusive; class++ {
		b := status.NewBoard(status.Options{Queries: []status.QueryInfo{{Name: "q"}}})
		b.Ended("q", failure.New(class, "it ended"))
		want := status.CodeFailed + "-" + class.String()
		if said, linked := advised(pageOf(t, b)); !linked[want] || !said[want] {
			t.Errorf("class %s: linked %v, said %v", class, linked[want], said[want])
		}
	}
}

func TestCareProofSamplesAndGraphAreOnThePage(t *testing.T) {
	html := pageOf(t, statustest.Red(clock.System{}))
	for _, want := range []string{
		"7 in one partition", "14 manifests", "next in 12 batches", "900 compacted", "not by this process", "none yet",
		"38 of 40 scenarios proved", "120 processes killed", "prove it again", "2 rows missing &lt;b&gt;", "30/31",
		"4 min before the watermark", "offset 77", "seen before within the watermark", "&lt;script&gt;",
		"g-bar bad", "stg_edits reads silver.edits", "1 test failed", "4 tests passed",
		"check bronze_once", "waits for the store", "permission denied",
	} {
		if !strings.Contains(html, want) {
			t.Errorf("the page does not hold %q", want)
		}
	}
	for _, markup := range []string{"<script>", "<gone>", "<img src=x"} {
		if strings.Contains(html, markup) {
			t.Errorf("the page holds somebody else's %s", markup)
		}
	}
}
