//! Choosing a peer: pure functions used by the HTTP and the kernel balancer.
