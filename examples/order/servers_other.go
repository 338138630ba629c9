//go:build !unix

package main

import "os/exec"

func unprivileged(*exec.Cmd, string) error { return nil }

func end(cmd *exec.Cmd, ended <-chan error) error {
	err := cmd.Process.Kill()
	<-ended
	return err
}
