"""What a run's trees and updates say about it: measured, with what to do about it (`diagnose`)."""
