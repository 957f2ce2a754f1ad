//! The specs that come with the program, embedded so that the binary works anywhere.

/// A shipped spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShippedSpec {
    /// Name on the command line.
    pub name: &'static str,
    /// One line for people.
    pub summary: &'static str,
    /// The file as it lies in `models/`.
    pub toml: &'static str,
}

/// Every shipped spec, the measured proxy first.
pub const SHIPPED: &[ShippedSpec] = &[
    ShippedSpec {
        name: "dsv3-proxy",
        summary: "DeepSeek-V3-shaped proxy on 8 GPUs, plain mesh, as measured on the H200",
        toml: include_str!("../../models/dsv3-proxy.toml"),
    },
    ShippedSpec {
        name: "dsv3-proxy-hybrid",
        summary: "the same proxy on the hybrid mesh of the public report (Megatron-LM issue 7264)",
        toml: include_str!("../../models/dsv3-proxy-hybrid.toml"),
    },
    ShippedSpec {
        name: "llama3-8b",
        summary: "Llama 3 8B (dense, grouped-query attention) on 8 GPUs",
        toml: include_str!("../../models/llama3-8b.toml"),
    },
    ShippedSpec {
        name: "deepseek-v3-671b",
        summary: "DeepSeek-V3 671B (MLA, 256 experts) on 256 GPUs",
        toml: include_str!("../../models/deepseek-v3-671b.toml"),
    },
];

impl ShippedSpec {
    /// The shipped spec of that name; `.toml` and a leading `models/` are allowed.
    pub fn find(name: &str) -> Option<&'static ShippedSpec> {
        let stem = name.strip_suffix(".toml").unwrap_or(name);
        let stem = stem.strip_prefix("models/").unwrap_or(stem);
        SHIPPED.iter().find(|shipped| shipped.name == stem)
    }
}
