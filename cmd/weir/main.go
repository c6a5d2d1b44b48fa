// Command weir is the streaming lakehouse in one binary.
package main

import (
	"os"

	"github.com/weirlake/weir/internal/cli"
	_ "github.com/weirlake/weir/internal/duck/link" // gold and weir sql
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdout, os.Stderr)) }
