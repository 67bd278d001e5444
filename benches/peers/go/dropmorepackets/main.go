// The agent of github.com/dropmorepackets/haproxy-go, with a handler as its tests write them.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/dropmorepackets/haproxy-go/pkg/encoding"
	"github.com/dropmorepackets/haproxy-go/spop"
)

func main() {
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
	agent := spop.Agent{Handler: spop.HandlerFunc(answer)}
	log.Fatal(agent.Serve(listener))
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

func answer(_ context.Context, writer *encoding.ActionWriter, message *encoding.Message) {
	entry := encoding.AcquireKVEntry()
	defer encoding.ReleaseKVEntry(entry)
	for message.KV.Next(entry) {
		if entry.NameEquals("ip") {
			blocked := entry.ValueAddr() == broadcast
			if err := writer.SetBool(encoding.VarScopeTransaction, "blocked", blocked); err != nil {
				log.Print(err)
			}
			return
		}
	}
}
