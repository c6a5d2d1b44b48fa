package freeport

import (
	"fmt"
	"net"
	"testing"
)

func TestPortsAreFreeAndGivenOnce(t *testing.T) {
	seen := map[int]bool{}
	for range 50 {
		port, err := Find(stride)
		if err != nil {
			t.Fatal(err)
		}
		if port < from || port+stride > to {
			t.Fatalf("port %d", port)
		}
		for p := port; p < port+stride; p++ {
			if seen[p] {
				t.Fatalf("port %d was given twice", p)
			}
			seen[p] = true
		}
	}
}

func TestAPortThatIsTakenIsNotGiven(t *testing.T) {
	port, err := Find(2)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+1))
	if err != nil {
		t.Skip("somebody else has taken it meanwhile")
	}
	defer l.Close()
	if !allFree(port, 1) || allFree(port, 2) {
		t.Error("the second of two ports is taken, and only of two")
	}
}
