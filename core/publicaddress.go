package core

import (
	"encoding/binary"
	"net/netip"
)

// specialAddresses are the blocks that have no hosts of the public Internet: from the IANA special-purpose registries (RFC 6890 and its updates), and
// single addresses that clouds use for their hosts.
var specialAddresses = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24",
	"192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
	"2001::/23", "2001:db8::/32", "2620:4f:8000::/48", "3fff::/20",
	"168.63.129.16/32", // the host of a virtual machine in Azure
)

// assigned is the block of the IPv6 addresses of the Internet (RFC 4291 section 2.4). Other addresses are special or reserved. For example, a local
// translator turns ::ffff:0:0:0/96 (RFC 2765) and 64:ff9b:1::/48 (RFC 8215) into IPv4 addresses.
var assigned = netip.MustParsePrefix("2000::/3")

// The blocks of IPv6 addresses that have an IPv4 address inside: 6to4 (RFC 3056) and NAT64 (RFC 6052).
var sixToFour, nat64 = netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("64:ff9b::/96")

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, t := range texts {
		list = append(list, netip.MustParsePrefix(t))
	}
	return list
}

// IsPublic reports whether an address is one of the public Internet: not private, loopback, link-local, shared (CGNAT), multicast, unspecified or
// kept for documentation. An IPv4 address inside an IPv6 address must be public too.
func IsPublic(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	if !a.IsValid() || !a.IsGlobalUnicast() || a.IsPrivate() {
		return false
	}
	for _, p := range specialAddresses {
		if p.Contains(a) {
			return false
		}
	}
	if a.Is4() {
		return true
	}
	b := a.As16()
	switch {
	case sixToFour.Contains(a):
		return IsPublic(netip.AddrFrom4([4]byte(b[2:6])))
	case nat64.Contains(a):
		return IsPublic(netip.AddrFrom4([4]byte(b[12:16])))
	case !assigned.Contains(a):
		return false
	}
	// An ISATAP address (RFC 5214) has an IPv4 address of its own link inside.
	return binary.BigEndian.Uint16(b[8:10])&^0x0200 != 0 || binary.BigEndian.Uint16(b[10:12]) != 0x5efe
}
