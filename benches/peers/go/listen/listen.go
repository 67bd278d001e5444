// Package listen opens an agent's socket, and says so.
package listen

import (
	"fmt"
	"log"
	"net"
	"os"
	"strings"
)

// Open listens where the first argument of the program says: IP:PORT or unix:/PATH.
func Open() net.Listener {
	network, address := "tcp", os.Args[1]
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", path
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		log.Fatal(err)
	}
	if network == "unix" {
		fmt.Printf("listening on unix:%s\n", address)
	} else {
		fmt.Printf("listening on %s\n", listener.Addr())
	}
	return listener
}
