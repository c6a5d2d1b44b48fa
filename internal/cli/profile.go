package cli

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
)

// profile writes profiles of this process where the environment asks for them:
// WEIR_CPUPROFILE and WEIR_MEMPROFILE name files. The returned function ends
// them. A profile that cannot be written never stops the command.
func profile(stderr io.Writer) (stop func()) {
	stops := []func(){}
	complain := func(err error) {
		if err != nil {
			fmt.Fprintln(stderr, "weir: profile:", err)
		}
	}
	if path := os.Getenv("WEIR_CPUPROFILE"); path != "" {
		f, err := os.Create(path)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		complain(err)
		if err == nil {
			stops = append(stops, func() {
				pprof.StopCPUProfile()
				complain(f.Close())
			})
		}
	}
	if path := os.Getenv("WEIR_MEMPROFILE"); path != "" {
		stops = append(stops, func() {
			f, err := os.Create(path)
			if err != nil {
				complain(err)
				return
			}
			runtime.GC()
			complain(pprof.Lookup("allocs").WriteTo(f, 0))
			complain(f.Close())
		})
	}
	return func() {
		for _, s := range stops {
			s()
		}
	}
}
