package testservers

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// template returns a folder whose subfolder "data" fill has filled once for this process. To make
// the data of a database takes longer than to copy them.
func (k kind) template(fill func(data string) error) (string, error) {
	mu.Lock()
	defer mu.Unlock()
	key := fmt.Sprint(k.name, AsShipped())
	if dir := templates[key]; dir != "" {
		return dir, nil
	}
	dir, err := k.folder()
	if err != nil {
		return "", err
	}
	templates[key] = dir // Main removes it
	if err := fill(filepath.Join(dir, "data")); err != nil {
		delete(templates, key)
		os.RemoveAll(dir) //nolint:errcheck // a temporary folder
		return "", err
	}
	return dir, nil
}

// copyTemplate gives a new server its data.
func (k kind) copyTemplate(dir string, fill func(data string) error) error {
	from, err := k.template(fill)
	if err != nil {
		return err
	}
	return run(exec.Command("cp", "-a", filepath.Join(from, "data"), filepath.Join(dir, "data")))
}

// run runs a command to its end.
func run(cmd *exec.Cmd) error {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := spawn(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", cmd.Path, err, &out)
	}
	return nil
}
