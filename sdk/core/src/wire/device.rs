//! The device of a learner, as named in [`super::Hello`].

/// Kind of device. The text in `Hello` begins with its name; the rest is free text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceKind {
    /// A browser page, with any kind of computation.
    Browser,
    /// A GPU.
    Gpu,
    /// A CPU.
    Cpu,
    /// A device whose text begins with none of these names.
    Other,
}

impl DeviceKind {
    /// All kinds with a name.
    pub const NAMED: [Self; 3] = [Self::Browser, Self::Gpu, Self::Cpu];

    /// First word of the text in `Hello`.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Browser => "browser",
            Self::Gpu => "gpu",
            Self::Cpu => "cpu",
            Self::Other => "other",
        }
    }

    /// Returns the text for a device of this kind: its name and `details`, which may be empty.
    #[must_use]
    pub fn describe(self, details: &str) -> String {
        match details {
            "" => self.name().to_owned(),
            _ => format!("{}, {details}", self.name()),
        }
    }

    /// Returns the kind that the first word of `device` names.
    #[must_use]
    pub fn of(device: &str) -> Self {
        let first = device.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
        Self::NAMED.into_iter().find(|kind| first.eq_ignore_ascii_case(kind.name())).unwrap_or(Self::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_described_device_is_of_its_kind() {
        for kind in DeviceKind::NAMED {
            for details in ["", "2 threads", "NVIDIA L4", "WebGPU, Apple M2", "gpu or cpu"] {
                let device = kind.describe(details);
                assert_eq!(DeviceKind::of(&device), kind, "{device}");
            }
        }
    }

    /// Engines describe themselves by the name and a space.
    #[test]
    fn the_first_word_decides() {
        let check = |device, kind| assert_eq!(DeviceKind::of(device), kind, "{device}");
        check("cpu avx512 2 threads", DeviceKind::Cpu);
        check("GPU llvmpipe vulkan", DeviceKind::Gpu);
        check("gpus", DeviceKind::Other);
        check("by hand", DeviceKind::Other);
        check("", DeviceKind::Other);
    }
}
