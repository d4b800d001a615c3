//! Configurations by which the two evaluators once gave different verdicts, or might easily.

/// As text.
pub const CONFIGURATIONS: &[&str] = &[
    // An IPv6 prefix around the IPv4 addresses holds for none of them, neither as a unit nor in a list.
    r#"
        mode = "divert"
        default_policy = "drop"
        [kernel]
        interfaces = []
        [[policy]]
        name = "six"
        addr = ["::/0"]
        [[unit]]
        name = "all"
        kind = "net"
        addresses = ["::/0", "10.0.0.0/22"]
        fw_policy = ["six"]
    "#,
    // No test at all, and its opposite.
    r#"
        mode = "divert"
        [kernel]
        interfaces = []
        [[policy]]
        name = "any"
        [[policy]]
        name = "none"
        policy_and = ["!any"]
        [[policy]]
        name = "odd"
        policy_or = ["none", "!none"]
        policy_and = ["odd-part", "!none"]
        [[policy]]
        name = "odd-part"
        port = [1, 3, 5, 7]
        [[unit]]
        name = "a"
        kind = "net"
        addresses = ["10.0.0.0/24"]
        fw_policy = ["none", "odd"]
        [[unit]]
        name = "b"
        kind = "net"
        addresses = ["10.0.1.0/24"]
        fw_policy = ["!any", "!odd"]
    "#,
    // A side that nobody decides, beside one that a list lets pass.
    r#"
        mode = "divert"
        default_policy = "drop"
        local_policy = "pass"
        [kernel]
        interfaces = []
        [[policy]]
        name = "any"
        [[unit]]
        name = "listed"
        kind = "net"
        addresses = ["10.0.0.0/24"]
        fw_policy = ["any"]
        [[unit]]
        name = "open"
        kind = "net"
        addresses = ["10.0.1.0/24"]
        [[unit]]
        name = "closed"
        kind = "net"
        addresses = ["10.0.2.0/24"]
        no_local_pass = true
        [[unit]]
        name = "both"
        kind = "group"
        members = ["listed", "closed"]
    "#,
];
