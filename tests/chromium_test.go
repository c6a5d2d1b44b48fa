package tests

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// browser is a headless Chromium, driven over its DevTools pipe: file
// descriptors 3 and 4, one JSON message per NUL. No port is opened and no
// driver is needed.
type browser struct {
	t       *testing.T
	in      io.Writer
	session string

	mu      sync.Mutex
	next    int
	waiting map[int]chan message
	// console is what pages wrote to it, and every request that failed or that
	// the page's policy refused.
	console []string
	// urls are all that the pages asked for.
	urls []string
}

type message struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// chromium starts the browser of CHROMIUM or of the path, and skips where
// there is none.
func chromium(t *testing.T) *browser {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a browser: not under -short")
	}
	path := os.Getenv("CHROMIUM")
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path == "" {
			path, _ = exec.LookPath(name)
		}
	}
	if path == "" {
		t.Skip("no Chromium: install the package chromium, or set CHROMIUM to its path")
	}
	// Not t.TempDir: the browser's helpers may write for a moment after its end.
	profile, err := os.MkdirTemp("", "weir-chromium-")
	if err != nil {
		t.Fatal(err)
	}
	toBrowser, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, fromBrowser, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
		"--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-component-update",
		"--disable-sync", "--force-color-profile=srgb", "--user-data-dir="+profile, "about:blank")
	cmd.ExtraFiles = []*os.File{toBrowser, fromBrowser}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = toBrowser.Close(), fromBrowser.Close()
	b := &browser{t: t, in: in, waiting: map[int]chan message{}}
	go b.read(out)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		for range 50 {
			if os.RemoveAll(profile) == nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		_, _ = in.Close(), out.Close()
	})
	var target struct {
		TargetID string `json:"targetId"`
	}
	b.call(&target, "Target.createTarget", map[string]any{"url": "about:blank"})
	var session struct {
		SessionID string `json:"sessionId"`
	}
	b.call(&session, "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true})
	b.session = session.SessionID
	for _, domain := range []string{"Page", "Runtime", "Network", "Log", "Accessibility"} {
		b.call(nil, domain+".enable", nil)
	}
	return b
}

func (b *browser) read(out io.Reader) {
	r := bufio.NewReaderSize(out, 1<<20)
	for {
		raw, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(raw[:len(raw)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		if c := b.waiting[m.ID]; m.ID != 0 && c != nil {
			delete(b.waiting, m.ID)
			c <- m
		}
		switch m.Method {
		case "Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled":
			b.console = append(b.console, string(m.Params))
		case "Network.requestWillBeSent":
			var p struct {
				Request struct {
					URL string `json:"url"`
				} `json:"request"`
			}
			if json.Unmarshal(m.Params, &p) == nil {
				b.urls = append(b.urls, p.Request.URL)
			}
		}
		b.mu.Unlock()
	}
}

// call sends a command and decodes its result.
func (b *browser) call(into any, method string, params map[string]any) {
	b.t.Helper()
	b.mu.Lock()
	b.next++
	id, answer := b.next, make(chan message, 1)
	b.waiting[id] = answer
	b.mu.Unlock()
	command := map[string]any{"id": id, "method": method}
	if params != nil {
		command["params"] = params
	}
	if b.session != "" {
		command["sessionId"] = b.session
	}
	raw, err := json.Marshal(command)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.in.Write(append(raw, 0)); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	select {
	case m := <-answer:
		if m.Error != nil {
			b.t.Fatalf("%s: %s", method, m.Error.Message)
		}
		if into != nil {
			if err := json.Unmarshal(m.Result, into); err != nil {
				b.t.Fatal(err)
			}
		}
	case <-time.After(patience):
		b.t.Fatalf("%s: the browser does not answer", method)
	}
}

// eval runs a script in the page and decodes what it gives.
func (b *browser) eval(into any, script string) {
	b.t.Helper()
	var out struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception *struct {
			Text string `json:"text"`
		} `json:"exceptionDetails"`
	}
	b.call(&out, "Runtime.evaluate", map[string]any{"expression": script, "returnByValue": true, "awaitPromise": true})
	if out.Exception != nil {
		b.t.Fatalf("%s: %s", script, out.Exception.Text)
	}
	if into != nil && len(out.Result.Value) > 0 {
		if err := json.Unmarshal(out.Result.Value, into); err != nil {
			b.t.Fatalf("%s: %v in %s", script, err, out.Result.Value)
		}
	}
}

// until waits for a script to be true.
func (b *browser) until(script string) {
	b.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		var ok bool
		b.eval(&ok, "Boolean("+script+")")
		if ok {
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("never true in the page: %s\n%s", script, strings.Join(b.console, "\n"))
		}
	}
}

// open loads a page.
func (b *browser) open(url string) {
	b.t.Helper()
	b.call(nil, "Page.navigate", map[string]any{"url": url})
	b.until(`document.readyState === "complete" && location.href !== "about:blank"`)
}

// look sets the window's size and the colour scheme.
func (b *browser) look(width, height int, scheme string) {
	b.t.Helper()
	b.call(nil, "Emulation.setDeviceMetricsOverride", map[string]any{
		"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700,
	})
	b.call(nil, "Emulation.setEmulatedMedia", map[string]any{
		"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}},
	})
}

// key presses one key.
func (b *browser) key(name string, code int) {
	b.t.Helper()
	for _, kind := range []string{"rawKeyDown", "keyUp"} {
		b.call(nil, "Input.dispatchKeyEvent", map[string]any{"type": kind, "key": name, "code": name, "windowsVirtualKeyCode": code})
	}
}

// screenshot writes the window, or the whole page, to a PNG file.
func (b *browser) screenshot(path string, whole bool) []byte {
	b.t.Helper()
	var shot struct {
		Data string `json:"data"`
	}
	b.call(&shot, "Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": whole})
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	if err == nil {
		err = os.WriteFile(path, png, 0o644)
	}
	if err != nil {
		b.t.Fatal(fmt.Errorf("screenshot: %w", err))
	}
	return png
}

// screenshotPath is a file in WEIR_SCREENSHOTS, for people to look at, or one
// that goes with the test.
func screenshotPath(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("WEIR_SCREENSHOTS")
	if dir == "" {
		dir = t.TempDir()
	} else if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// checkTree looks at the page as a screen reader does.
func (b *browser) checkTree(t *testing.T) {
	t.Helper()
	var tree struct {
		Nodes []struct {
			Ignored bool
			Role    struct{ Value string }
			Name    struct{ Value string }
		}
	}
	b.call(&tree, "Accessibility.getFullAXTree", nil)
	roles := map[string]int{}
	for _, n := range tree.Nodes {
		if n.Ignored {
			continue
		}
		roles[n.Role.Value]++
		switch n.Role.Value {
		case "link", "button", "heading", "image", "img", "region", "navigation", "article", "table":
			if strings.TrimSpace(n.Name.Value) == "" {
				t.Errorf("a %s has no name", n.Role.Value)
			}
		}
	}
	for role, least := range map[string]int{"banner": 1, "navigation": 1, "main": 1, "contentinfo": 1, "status": 2, "heading": 8, "table": 2, "region": 6} {
		if roles[role] < least {
			t.Errorf("%d of role %s, want %d or more; there are %v", roles[role], role, least, roles)
		}
	}
	var levels []int
	b.eval(&levels, `[...document.querySelectorAll("h1,h2,h3,h4")].map((h) => +h.tagName[1])`)
	for i, l := range levels {
		if i == 0 && l != 1 || i > 0 && l > levels[i-1]+1 {
			t.Errorf("heading levels %v", levels)
			break
		}
	}
}

// checkLook fails where the page is wider than its window, or a text is hard to
// read.
func (b *browser) checkLook(t *testing.T) {
	t.Helper()
	var over float64
	b.eval(&over, `document.scrollingElement.scrollWidth - innerWidth`)
	if over > 0 {
		t.Errorf("the page is %v pixels wider than the window", over)
	}
	var faint []string
	b.eval(nil, `document.querySelector("footer p").style.color = getComputedStyle(document.body).backgroundColor`)
	if b.eval(&faint, contrastScript); len(faint) != 1 {
		t.Errorf("the check of contrast finds %v where one text is invisible", faint)
	}
	b.eval(nil, `document.querySelector("footer p").style.color = ""`)
	b.eval(&faint, contrastScript)
	for _, f := range faint {
		t.Errorf("too little contrast: %s", f)
	}
}

// checkQuiet fails where a page asked for something that is not below url, or
// wrote to the console.
func (b *browser) checkQuiet(t *testing.T, url string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, u := range b.urls {
		if !strings.HasPrefix(u, url) && !strings.HasPrefix(u, "about:") && !strings.HasPrefix(u, "data:") {
			t.Errorf("the page asked for %s", u)
		}
	}
	for _, c := range b.console {
		t.Errorf("the page complains: %s", c)
	}
}

// contrastScript lists texts whose contrast with what is behind them is below
// 4.5:1 (3:1 for large ones).
const contrastScript = `(() => {
  const parse = (c) => {
    const n = (c.match(/-?[\d.]+(?:e-?\d+)?/g) || []).map(Number);
    return c.startsWith("color(") ? [n[0] * 255, n[1] * 255, n[2] * 255, n[3] ?? 1] : [n[0], n[1], n[2], n[3] ?? 1];
  };
  const over = (a, b) => [0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
  const behind = (e) => {
    const layers = [];
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c[3] > 0) layers.push(c);
      if (c[3] === 1) break;
    }
    return layers.reverse().reduce((under, c) => over(c, under), [255, 255, 255, 1]);
  };
  const light = (c) => { const [r, g, b] = c.map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const out = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n; (n = walk.nextNode()); ) {
    const e = n.parentElement, text = n.data.trim();
    if (!text || !e.checkVisibility() || e.closest("script,noscript,.sr,.tip")) continue;
    const s = getComputedStyle(e), under = behind(e), ink = over(parse(e.namespaceURI.includes("svg") ? s.fill : s.color), under);
    const [a, b] = [light(ink), light(under)], ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const px = parseFloat(s.fontSize), large = px >= 24 || (px >= 18.66 && s.fontWeight >= 600);
    if (ratio < (large ? 3 : 4.5)) out.add(ratio.toFixed(2) + " " + e.className + " " + text.slice(0, 40));
  }
  return [...out];
})()`
