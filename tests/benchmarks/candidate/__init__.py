"""The rule that StopAdvisor is to take in, as a contestant: worked out on the half `develop`."""
