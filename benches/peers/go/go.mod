module peers

go 1.24

require github.com/negasus/haproxy-spoe-go v1.0.7

require github.com/dropmorepackets/haproxy-go v0.1.1
