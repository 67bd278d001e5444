// The agent of github.com/negasus/haproxy-spoe-go, as its readme writes one.
package main

import (
	"fmt"
	"log"
	"net"
	"os"
	"strings"

	"github.com/negasus/haproxy-spoe-go/action"
	"github.com/negasus/haproxy-spoe-go/agent"
	"github.com/negasus/haproxy-spoe-go/logger"
	"github.com/negasus/haproxy-spoe-go/request"
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
	log.Fatal(agent.New(answer, logger.NewNop()).Serve(listener))
}

func answer(req *request.Request) {
	message, err := req.Messages.GetByName("check")
	if err != nil {
		return
	}
	value, ok := message.KV.Get("ip")
	if !ok {
		return
	}
	ip, ok := value.(net.IP)
	if !ok {
		return
	}
	req.Actions.SetVar(action.ScopeTransaction, "blocked", ip.Equal(net.IPv4bcast))
}
