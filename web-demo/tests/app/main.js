// An app as a developer would write it: everything by default, found by the bundler.
import { capabilities, join, LearnerError, measure } from "@archipelago-train/learner";

Object.assign(window, { capabilities, join, LearnerError, measure });
