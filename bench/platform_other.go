//go:build !linux

package main

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"time"
)

// Elsewhere the program runs, but what only Linux can tell is not measured.
var errLinuxOnly = errors.New("measured on Linux only")

func syncData(f *os.File) error { return f.Sync() }

func dieWithParent(*exec.Cmd) {}

func residentBytes() (int64, error) { return 0, errLinuxOnly }

func processorTime() (time.Duration, error) { return 0, errLinuxOnly }

func dropCaches(string) (string, error) { return "", errLinuxOnly }

func forgetFiles(string) error { return errLinuxOnly }

func kernel() string { return runtime.GOOS }
