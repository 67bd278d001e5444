// The agent of github.com/dropmorepackets/haproxy-go, with a handler as its tests write them.
package main

import (
	"context"
	"log"
	"net/netip"

	"github.com/dropmorepackets/haproxy-go/pkg/encoding"
	"github.com/dropmorepackets/haproxy-go/spop"

	"peers/listen"
)

func main() {
	agent := spop.Agent{Handler: spop.HandlerFunc(answer)}
	log.Fatal(agent.Serve(listen.Open()))
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
