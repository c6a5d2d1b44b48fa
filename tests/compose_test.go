package tests

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// composeFile is what is read of deploy/docker/compose.yaml.
type composeFile struct {
	Services map[string]composeService `yaml:"services"`
	Volumes  map[string]any            `yaml:"volumes"`
	Secrets  map[string]map[string]any `yaml:"secrets"`
}

type composeService struct {
	Image       string                                `yaml:"image"`
	Build       map[string]string                     `yaml:"build"`
	Command     []string                              `yaml:"command"`
	Environment map[string]string                     `yaml:"environment"`
	Ports       []string                              `yaml:"ports"`
	Volumes     []string                              `yaml:"volumes"`
	DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
	Healthcheck *struct{ Test []string }              `yaml:"healthcheck"`
	Restart     string                                `yaml:"restart"`
	ReadOnly    bool                                  `yaml:"read_only"`
	CapDrop     []string                              `yaml:"cap_drop"`
	SecurityOpt []string                              `yaml:"security_opt"`
	Secrets     []string                              `yaml:"secrets"`
}

// isWeir tells the services that run the binary.
func (s composeService) isWeir() bool { return len(s.Build) > 0 }

func dockerFolder(t *testing.T) string { return filepath.Join(repo(t), "deploy", "docker") }

func readCompose(t *testing.T) (composeFile, string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dockerFolder(t), "compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var c composeFile
	if err := yaml.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Services) < 7 {
		t.Fatalf("only %d services were read", len(c.Services))
	}
	return c, string(text)
}

var (
	composeVariable = regexp.MustCompile(`\$\{(\w+)[^}]*\}`)
	pinnedImage     = regexp.MustCompile(`^[a-z0-9./-]+:v?\d+\.\d+(\.\d+)?(-[a-z]+)?$`)
)

func TestTheComposeFileStartsThingsInOrderAndExposesNothing(t *testing.T) {
	c, text := readCompose(t)
	example, err := os.ReadFile(filepath.Join(dockerFolder(t), ".env.example"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range composeVariable.FindAllStringSubmatch(text, -1) {
		if !strings.Contains(string(example), "\n"+m[1]+"=") {
			t.Errorf(".env.example does not set %s", m[1])
		}
	}
	used := map[string]bool{}
	for name, s := range c.Services {
		if !s.isWeir() && !pinnedImage.MatchString(s.Image) {
			t.Errorf("%s: the image %q is not pinned to a version", name, s.Image)
		}
		if s.isWeir() {
			if !s.ReadOnly || !slices.Contains(s.CapDrop, "ALL") || !slices.Contains(s.SecurityOpt, "no-new-privileges:true") {
				t.Errorf("%s: has more rights than it needs", name)
			}
			if _, err := os.Stat(filepath.Join(dockerFolder(t), s.Build["context"], s.Build["dockerfile"])); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if s.Restart == "" {
			t.Errorf("%s: does not say when it is restarted", name)
		}
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("%s: port %s is open to other machines", name, p)
			}
		}
		for _, v := range s.Volumes {
			source, _, _ := strings.Cut(v, ":")
			if !strings.HasPrefix(source, ".") {
				used[source] = true
			} else if _, err := os.Stat(filepath.Join(dockerFolder(t), source)); err != nil || !strings.HasSuffix(v, ":ro") {
				t.Errorf("%s: %s must be there, and read-only: %v", name, v, err)
			}
		}
		for _, secret := range s.Secrets {
			if c.Secrets[secret] == nil {
				t.Errorf("%s: there is no secret %s", name, secret)
			}
		}
		for on, d := range s.DependsOn {
			other, ok := c.Services[on]
			// The image's own check is the Dockerfile's.
			if !ok || (d.Condition == "service_healthy" && other.Healthcheck == nil && !other.isWeir()) {
				t.Errorf("%s: depends on %s being %s, which it never is", name, on, d.Condition)
			}
		}
	}
	for v := range used {
		if _, ok := c.Volumes[v]; !ok {
			t.Errorf("volume %s is not declared", v)
		}
	}
}

func TestTheImageRunsAsAnOrdinaryUserFromPinnedImages(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(dockerFolder(t), "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(b), "\\\n", " ")
	last := map[string]string{}
	for _, line := range strings.Split(text, "\n") {
		word, rest, _ := strings.Cut(line, " ")
		rest = strings.TrimSpace(rest)
		last[word] = rest
		if name, value, ok := strings.Cut(rest, "="); word == "ARG" && ok && value != "" && strings.Contains(value, ":") && !pinnedImage.MatchString(value) {
			t.Errorf("%s: %s is not pinned", name, value)
		}
		if word == "FROM" && !strings.HasPrefix(rest, "${") {
			t.Errorf("FROM %s: not from a pinned ARG", rest)
		}
	}
	if !regexp.MustCompile(`^[1-9]\d+:[1-9]\d+$`).MatchString(last["USER"]) {
		t.Errorf("USER %s: a number is what a cluster can check, and not 0", last["USER"])
	}
	if last["ENTRYPOINT"] != `["/usr/bin/weir"]` || !strings.Contains(last["HEALTHCHECK"], `CMD ["/usr/bin/weir", "health"]`) || last["STOPSIGNAL"] != "SIGTERM" {
		t.Errorf("entry point %s, health check %s, stop signal %s", last["ENTRYPOINT"], last["HEALTHCHECK"], last["STOPSIGNAL"])
	}
	// The variables that are set at link time are there.
	version, err := os.ReadFile(filepath.Join(repo(t), "internal", "cli", "version.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`internal/cli\.(\w+)=`).FindAllStringSubmatch(text, -1) {
		if !regexp.MustCompile(`(?m)^\t` + m[1] + `\s+= "`).Match(version) {
			t.Errorf("-X …cli.%s sets nothing", m[1])
		}
	}
	// The toolchain is at least the module's.
	mod, err := os.ReadFile(filepath.Join(repo(t), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	needs := regexp.MustCompile(`(?m)^go (1\.\d+)`).FindStringSubmatch(string(mod))
	if needs == nil || !strings.Contains(text, "golang:"+needs[1]+".") {
		t.Errorf("go.mod needs Go %v, the image builds with another", needs)
	}
}
