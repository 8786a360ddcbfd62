"""Do predictions of classes hold: calibration, rejection, unknown inputs, corruption, attack?"""
