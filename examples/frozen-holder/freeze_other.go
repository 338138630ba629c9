//go:build !unix

package main

import (
	"errors"
	"os"
)

var errSystem = errors.New("a process can be frozen on Unix only")

func freeze(*os.Process) error { return errSystem }

func thaw(*os.Process) error { return errSystem }
