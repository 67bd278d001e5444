// The agent of github.com/negasus/haproxy-spoe-go, as its readme writes one.
package main

import (
	"log"
	"net"

	"github.com/negasus/haproxy-spoe-go/action"
	"github.com/negasus/haproxy-spoe-go/agent"
	"github.com/negasus/haproxy-spoe-go/logger"
	"github.com/negasus/haproxy-spoe-go/request"

	"peers/listen"
)

func main() {
	log.Fatal(agent.New(answer, logger.NewNop()).Serve(listen.Open()))
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
