package status

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// securityHeaders go with every answer. The page loads nothing from elsewhere,
// runs no inline script, and cannot be framed.
var securityHeaders = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " +
		"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY",
	"Referrer-Policy":              "no-referrer",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Cache-Control":                "no-store",
}

// cookieDays is how long a browser is remembered after /?token=….
const cookieDays = 30

// guard is what every request passes: method, host, token.
type guard struct {
	token  string
	cookie string // its name; ports share a host's cookies
}

func newGuard(token string, port int) guard {
	return guard{token: token, cookie: "weir_status_" + strconv.Itoa(port)}
}

// pass is the value of the cookie: proof of the token that is not the token.
func (g guard) pass() string {
	m := hmac.New(sha256.New, []byte(g.token))
	m.Write([]byte("weir status page cookie"))
	return hex.EncodeToString(m.Sum(nil))
}

// equal compares in a time that does not depend on where texts differ, nor on
// how long they are.
func equal(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return hmac.Equal(x[:], y[:])
}

func (g guard) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for k, v := range securityHeaders {
			w.Header().Set(k, v)
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "nothing can be changed here", http.StatusMethodNotAllowed)
			return
		}
		if g.token == "" {
			// A web site may make its name point at 127.0.0.1 (DNS rebinding) and
			// read this page through the visitor's browser; the name gives it away.
			if !localHost(r.Host) {
				http.Error(w, "this page answers to localhost only; to serve it under another name, set status.token", http.StatusMisdirectedRequest)
				return
			}
			next.ServeHTTP(w, r)
			return
		}
		if g.handOver(w, r) {
			return
		}
		if !g.known(r) {
			if probe(w, r, next) {
				return
			}
			w.Header().Set("WWW-Authenticate", `Bearer realm="weir"`)
			http.Error(w, "token wanted: send Authorization: Bearer TOKEN, or open /?token=TOKEN once in a browser", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// localHost reports whether a Host header names this machine by a name that
// nobody else can own.
func localHost(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// handOver turns a token in the URL into a cookie and leads on to the same page
// without it, so that it stays in no history, bookmark or log.
func (g guard) handOver(w http.ResponseWriter, r *http.Request) bool {
	q := r.URL.Query()
	given, ok := q["token"]
	if !ok {
		return false
	}
	if len(given) != 1 || !equal(given[0], g.token) {
		http.Error(w, "this is not the token", http.StatusUnauthorized)
		return true
	}
	http.SetCookie(w, &http.Cookie{
		Name: g.cookie, Value: g.pass(), Path: "/", MaxAge: cookieDays * 24 * 3600, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		// Secure is left off: the server itself speaks plain HTTP; TLS is a proxy's.
	})
	q.Del("token")
	// Only path and query are kept, and the path begins with one slash: the
	// answer cannot lead to another host.
	to := url.URL{Path: "/" + strings.TrimLeft(r.URL.Path, "/\\"), RawQuery: q.Encode()}
	http.Redirect(w, r, to.String(), http.StatusSeeOther)
	return true
}

// known reports whether the request carries the token or its cookie.
func (g guard) known(r *http.Request) bool {
	if scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		return equal(strings.TrimSpace(token), g.token)
	}
	for _, c := range r.CookiesNamed(g.cookie) {
		if equal(c.Value, g.pass()) {
			return true
		}
	}
	return false
}

// probe answers /livez and /readyz to those without a token: a supervisor often
// cannot send one. They get the code and nothing else, no names and no reasons.
func probe(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
	if r.URL.Path != "/livez" && r.URL.Path != "/readyz" {
		return false
	}
	c := &codeOnly{header: http.Header{}}
	next.ServeHTTP(c, r)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if c.code == 0 || c.code == http.StatusOK {
		_, _ = w.Write([]byte("ok\n"))
		return true
	}
	http.Error(w, "no; the reasons are given with the token", c.code)
	return true
}

// codeOnly keeps the code of an answer and drops the rest.
type codeOnly struct {
	header http.Header
	code   int
}

func (c *codeOnly) Header() http.Header         { return c.header }
func (c *codeOnly) Write(b []byte) (int, error) { return len(b), nil }
func (c *codeOnly) WriteHeader(code int)        { c.code = code }
