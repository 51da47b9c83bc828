//! What a learner computes with, as the text in [`super::Hello`] says it.

/// The kinds of device. Each text in `Hello` begins with the name of one; what follows is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceKind {
    /// A page in a browser, whatever it computes with there.
    Browser,
    /// A GPU.
    Gpu,
    /// A CPU.
    Cpu,
    /// The text names none of these.
    Other,
}

impl DeviceKind {
    /// All kinds that a text can name.
    pub const NAMED: [Self; 3] = [Self::Browser, Self::Gpu, Self::Cpu];

    /// The word that a text begins with.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Browser => "browser",
            Self::Gpu => "gpu",
            Self::Cpu => "cpu",
            Self::Other => "other",
        }
    }

    /// The text for a device of this kind: its name, and `details` for people, which may be empty.
    #[must_use]
    pub fn describe(self, details: &str) -> String {
        match details {
            "" => self.name().to_owned(),
            _ => format!("{}, {details}", self.name()),
        }
    }

    /// The kind that `device` names with its first word.
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

    /// Engines describe themselves with the name and a space.
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
