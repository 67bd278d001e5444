module peers

go 1.24

require github.com/negasus/haproxy-spoe-go v1.0.7
