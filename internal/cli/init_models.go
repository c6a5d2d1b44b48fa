package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/weirlake/weir/examples"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/pipeline"
)

// modelsFolder is where init puts the models, beside the pipeline file.
const modelsFolder = "gold"

// writeModels writes the built-in models beside the pipeline file where its text
// uses them, and gives the text that names the folder instead.
func writeModels(file, text string, force bool) (string, error) {
	own := strings.Replace(text, pipeline.BuiltinGold+"}", modelsFolder+"}", 1)
	if own == text {
		return text, nil
	}
	if _, err := os.Stat(file); err == nil && !force {
		return text, nil // the caller refuses
	}
	to := filepath.Join(filepath.Dir(file), modelsFolder)
	if _, err := os.Stat(to); err == nil && !force {
		return "", failure.New(failure.Config, "%s exists", to).WithHint("choose another folder for the pipeline file, or --force to overwrite the models")
	}
	from := examples.Gold()
	err := fs.WalkDir(from, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path := filepath.Join(to, filepath.FromSlash(name))
		if d.IsDir() {
			return os.MkdirAll(path, 0o755)
		}
		body, err := fs.ReadFile(from, name)
		if err != nil {
			return err
		}
		return os.WriteFile(path, body, 0o644)
	})
	if err != nil {
		return "", failure.Wrap(failure.Config, err, "write the models into %s", to)
	}
	return own, nil
}
