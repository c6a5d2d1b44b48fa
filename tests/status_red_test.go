package tests

import (
	"fmt"
	"testing"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/status"
	"github.com/weirlake/weir/internal/status/statustest"
)

// windows are the sizes that the page is looked at in.
var windows = []struct {
	name          string
	width, height int
}{{"laptop", 1280, 900}, {"phone", 390, 844}}

func TestABrowserShowsEverythingThatIsRedAndWhatToDoAboutIt(t *testing.T) {
	b := chromium(t)
	board := statustest.Red(clock.System{})
	t.Cleanup(board.Close)
	s, err := status.Serve(board, status.ServeOptions{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	b.look(1280, 900, "light")
	b.open(s.URL())
	b.until(`document.getElementById("live").dataset.state === "on"`)

	t.Run("every reason leads to its advice", func(t *testing.T) {
		var links int
		b.eval(&links, `document.querySelectorAll("#health a").length`)
		if links < 7 {
			t.Errorf("%d reasons are shown", links)
		}
		for i := range links {
			b.eval(nil, fmt.Sprintf(`document.querySelectorAll("#health a")[%d].click()`, i))
			b.until(`document.activeElement.closest("details")?.open && "#" + document.activeElement.closest("details").id === location.hash`)
		}
	})
	t.Run("a wide table is scrolled by the keyboard", func(t *testing.T) {
		b.look(390, 844, "light")
		b.until(`document.querySelector("#tables .scroll").scrollWidth > document.querySelector("#tables .scroll").clientWidth`)
		b.eval(nil, `document.querySelector("#tables .scroll").focus()`)
		b.until(`document.activeElement.matches("#tables .scroll") && getComputedStyle(document.activeElement).outlineStyle !== "none"`)
		b.key("ArrowRight", 39)
		b.until(`document.querySelector("#tables .scroll").scrollLeft > 0`)
	})
	b.checkTree(t)
	for _, size := range windows {
		for _, scheme := range []string{"light", "dark"} {
			t.Run(size.name+" "+scheme, func(t *testing.T) {
				b.look(size.width, size.height, scheme)
				b.open(s.URL())
				b.until(`document.getElementById("live").dataset.state === "on" && document.querySelector("#jobs svg")`)
				b.checkLook(t)
				b.screenshot(screenshotPath(t, fmt.Sprintf("red-%s-%s.png", size.name, scheme)), true)
			})
		}
	}
	b.checkQuiet(t, s.URL())
}
